"""State of a main thread: does it wait for the GIL? Known from its system call, read from /proc without a stop.

CPython's GIL is a condition variable in the interpreter's static memory, and a thread that waits for it sleeps in
futex with an address of it. Locks of the program lie on the heap.
"""

from __future__ import annotations

import platform
import re
from pathlib import Path

from drumline.producers.host.cgroups import CounterFile

#: Number of the system call futex.
FUTEX = {"x86_64": 202, "aarch64": 98}
_INTERPRETER = re.compile(r"/(?:libpython3[^/]*|python3?(?:\.\d+)?t?)$")

Range = tuple[int, int]


def static_memory(maps: str) -> list[Range]:
    """Return the writable memory of the interpreter's image: of its file, and unnamed directly behind it."""
    ranges: list[Range] = []
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or "w" not in fields[1]:
            continue
        start, end = (int(part, 16) for part in fields[0].split("-"))
        path = fields[5] if len(fields) > 5 else ""
        if _INTERPRETER.search(path.removesuffix(" (deleted)")):
            ranges.append((start, end))
        elif not path and ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
    return ranges


def is_waiting(call: str, ranges: list[Range], futex: int) -> bool:
    """Return whether a thread waits for the GIL. `call`: the line of /proc/<pid>/task/<tid>/syscall."""
    fields = call.split()
    if len(fields) < 2 or fields[0] != str(futex):
        return False
    address = int(fields[1], 16)
    return any(start <= address < end for start, end in ranges)


class GilPoll:
    """Polls the main thread of one process and counts. Not thread-safe; raises nothing.

    `polls`: times that it could be read. `waiting`: of these, times that the thread waited for the GIL. Both stay 0
    where the program is no Python, or the kernel does not show its system call to this user.
    """

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self.polls = self.waiting = 0
        self._futex = FUTEX.get(platform.machine(), -1)
        try:
            self._ranges = static_memory((proc / str(pid) / "maps").read_text(errors="replace"))
        except (OSError, ValueError):
            self._ranges = []
        self._call = CounterFile(proc / str(pid) / "task" / str(pid) / "syscall") if self._ranges else None

    def poll(self) -> None:
        """Read the system call once."""
        call = self._call.text().decode(errors="replace") if self._call is not None and self._futex >= 0 else ""
        try:
            waited = is_waiting(call, self._ranges, self._futex)
        except ValueError:
            return
        self.polls += bool(call)
        self.waiting += waited

    def close(self) -> None:
        """Close the file."""
        if self._call is not None:
            self._call.close()
