"""Build the sdist and a wheel for each processor: `wheels.py FOLDER`, from the root of the repository.

The C compiler is Zig's, of the package ziglang: on any machine it compiles for every processor and an old C library.
Hosts that install a wheel need no compiler. `make release` runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

PROCESSORS = ("x86_64", "aarch64")
#: C library that hosts and images of jobs need at least, major and minor: that of RHEL 7, of 2012.
GLIBC = (2, 17)
#: A hook of PEP 517 in a process of its own: HOOK FOLDER [PLATFORM]; its last line is the file's name.
BUILD = """
import sys
from setuptools import build_meta
hook, folder, *platform = sys.argv[1:]
settings = {"--build-option": ["--plat-name", *platform]} if platform else None
print(getattr(build_meta, hook)(folder, settings))
"""


def run_hook(hook: str, source: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a hook of the build in the folder of the sources; return the name of the file that it made."""
    command = [sys.executable, "-c", BUILD, hook, *arguments]
    done = subprocess.run(
        command, cwd=source, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def build_wheel(source: Path, folder: Path, processor: str) -> Path:
    """Build the wheel of a processor. Raises ValueError where one of the C libraries was not built."""
    glibc = "{}.{}".format(*GLIBC)
    compiler = f"{sys.executable} -m ziglang cc -target {processor}-linux-gnu.{glibc}"
    environment = {
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "CFLAGS": "-O2",  # without a level Zig compiles with checks that end the process
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",  # Python's name for what is built for
    }
    platform = "manylinux_{}_{}_{}".format(*GLIBC, processor)
    wheel = folder / run_hook("build_wheel", source, str(folder), platform, environment=environment)
    modules = tomllib.loads((source / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    libraries = {module["name"].replace(".", "/") + ".so" for module in modules}
    with zipfile.ZipFile(wheel) as archive:
        if missing := libraries - set(archive.namelist()):
            raise ValueError(f"{wheel.name}: not built: {', '.join(sorted(missing))}; the compiler's errors are above")
    return wheel


def main(folder: Path) -> None:
    """Build them all; the wheels from the unpacked sdist, so that it is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    sdist = folder / run_hook("build_sdist", Path.cwd(), str(folder))
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
        [source] = Path(scratch).iterdir()
        for processor in PROCESSORS:
            print(build_wheel(source, folder, processor))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
