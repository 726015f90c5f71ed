"""Wall clocks that step for one program: a library in LD_PRELOAD adds the number in a file to the time of the kernel.

Linux has no wall clock for one process: time namespaces shift monotonic clocks only.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

from drumline.infra.config.state_dir import StackError
from drumline.lab.chaos.spans import Disturbance

SOURCE = Path(__file__).with_name("clock_ahead.c")
COMPILER = "cc"
#: How far a clock steps, forward or back: from what a time server corrects to what a machine that slept missed; s.
SMALLEST_S, LARGEST_S = 2, 3_600


def missing_compiler() -> str:
    """Return why no clock can step here, "" if one can."""
    return "" if shutil.which(COMPILER) else f"clocks step by a library that a C compiler builds: install {COMPILER}"


def build(folder: Path) -> Path:
    """Compile the library into the folder and return it. Raises StackError."""
    library = folder / "clock_ahead.so"
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(f"{SOURCE} was not compiled: {done.stderr.strip()[-500:]}")
    return library


class SteppingClock:
    """The wall clock of a program, which is that of the machine until it steps. Owned by the run's thread."""

    def __init__(self, library: Path, name: str) -> None:
        self._file = library.with_name(f"clock-{name}")
        self._file.write_bytes(bytes(8))
        self._library = library

    def environment(self) -> dict[str, str]:
        """Return the variables by which a program has this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_STEP_FILE": str(self._file)}

    def stepped(self, seconds: int) -> Disturbance:
        """Return the state in which the clock is that far ahead; it steps back at the end."""
        return Disturbance(self._file, lambda: self._set(seconds), lambda: self._set(0))

    def _set(self, seconds: int) -> None:
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as shared:
            shared[:8] = struct.pack("=q", seconds)
