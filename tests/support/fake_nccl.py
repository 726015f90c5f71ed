"""Builds the fake NCCL (fake_nccl.c) and the plugin, plain or under sanitizers, runs it, and reads the rings."""

import os
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from support.wait_limit import WAIT_S

from drumline.producers.rings.operations import channel_counts
from drumline.producers.rings.ring_file import COMM, HEADER_BYTES, MAX_COMMS, RECORD, HeaderField, Kind

ROOT = Path(__file__).parents[2]
SOURCES, PROGRAMS = ROOT / "producers" / "nccl_profiler", ROOT / "tests" / "producers" / "nccl_profiler"
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-Werror")
COMPILER = (*sysconfig.get_config_var("CC").split()[:1], "-O1", "-g", "-std=gnu11", "-fno-omit-frame-pointer")
PLUGIN = ("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,nodelete", *WARNINGS)
#: The fake NCCL's clock is the plugin's too.
FAKE = ("-ldl", "-lpthread", "-Wl,--export-dynamic-symbol=clock_gettime")
#: What fake_nccl.c exits with when it is called without arguments.
NO_ARGUMENTS = 3
SANITIZERS = {"plain": (), "address": ("-fsanitize=address,undefined",), "thread": ("-fsanitize=thread",)}


class Programs:
    """Compiled programs, in `folder`: `fake-KIND` and `plugin-KIND.so` by kind of SANITIZERS."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        commands = []
        for kind, flags in SANITIZERS.items():
            compiler = (*COMPILER, *flags, "-fno-sanitize-recover=all")
            commands.append((*compiler, *PLUGIN, "-o", self.plugin(kind), *SOURCES.glob("*.c")))
            commands.append((*compiler, "-o", folder / f"fake-{kind}", PROGRAMS / "fake_nccl.c", *FAKE))
        running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
        self._errors = [compiler.communicate(timeout=WAIT_S)[1] for compiler in running]
        assert [compiler.returncode for compiler in running[:2]] == [0, 0], self._errors
        self._usable = {kind for kind in SANITIZERS if self._starts(folder / f"fake-{kind}")}

    def _starts(self, program: Path) -> bool:
        plain = {"PATH": os.environ["PATH"]}  # as in run(): a sanitizer would refuse what is to be loaded before it
        return program.exists() and subprocess.run([program], capture_output=True, env=plain).returncode == NO_ARGUMENTS

    def require(self, kind: str) -> None:
        """Skip a test where the compiler or the kernel has no such sanitizer. In CI (CI=true) it fails."""
        if kind not in self._usable:
            assert os.environ.get("CI") != "true", self._errors
            pytest.skip(f"no sanitizer: {kind}")

    def plugin(self, kind: str = "plain") -> Path:
        return self.folder / f"plugin-{kind}.so"

    def chained(self, versions: str) -> Path:
        """A user's plugin that has the given versions."""
        library = self.folder / f"chained-{versions}.so"
        if library.exists():
            return library
        offers = " ".join(f"OFFER({version})" for version in versions)
        flags = ("-fPIC", "-shared", "-Wno-unused-function", f"-DVERSIONS={offers}")
        subprocess.run([*COMPILER, *flags, "-o", library, PROGRAMS / "chained_plugin.c"], check=True)
        return library

    def run(
        self, scenario: str, version: int, rings: Path | None, kind: str = "plain", library: str = "", **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a scenario; `more`: environment, after DRUMLINE_RINGS__ where it is in capitals.

        `library`: name of the file whose code calls the plugin.
        """
        self.require(kind)
        program = self.folder / f"fake-{kind}"
        if library:
            program = self.folder / kind / library
            program.parent.mkdir(exist_ok=True)
            program.unlink(missing_ok=True)
            program.symlink_to(self.folder / f"fake-{kind}")
        variables = {f"DRUMLINE_RINGS__{n}" if n.isupper() else n.upper(): value for n, value in more.items()}
        folder = {} if rings is None else {"DRUMLINE_RINGS__FOLDER": str(rings)}
        kept = {name: value for name, value in os.environ.items() if name == "PATH"}
        return subprocess.run(
            [program, self.plugin(kind), str(version), scenario],
            env=kept | folder | variables,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


class Ring:
    """One ring file: `header` by name, `comms`, `records` that are published, in order (those not overwritten)."""

    def __init__(self, path: Path) -> None:
        data = path.read_bytes()
        self.path, self.data = path, data
        numbers = np.frombuffer(data, "<i8", len(HeaderField)).tolist()
        self.header = {field.name.lower(): numbers[field] for field in HeaderField}
        self.comms = np.frombuffer(data, COMM, MAX_COMMS, HEADER_BYTES)
        places = np.frombuffer(data, RECORD, self.header["capacity"], HEADER_BYTES + self.comms.nbytes)
        self.records = np.sort(places[places["number"] > 0], order="number")
        self.started, self.stopped, self.drifted = channel_counts(self.records["progress"])

    @property
    def operations(self) -> np.ndarray:
        return self.records[self.records["kind"] == Kind.OPERATION]

    def name(self, index: int) -> str:
        """Name of a mark."""
        return self.records[index].tobytes()[64:].rstrip(b"\0").decode()


def only(folder: Path) -> Ring:
    """The folder's ring."""
    [path] = folder.glob("*.ring")
    return Ring(path)
