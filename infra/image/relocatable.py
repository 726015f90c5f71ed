"""Make the folder that is copied into pods: `relocatable.py WHEELS FOLDER`, while the image is built.

FOLDER/packages has drumline, for the job's own Python (the start-up hook) and for the decoder, with its two packages.
FOLDER/python starts the decoder: this Python with its own C library, so that it runs in an image with another one, or
without Python. FOLDER may lie anywhere.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

#: What the decoder imports beside drumline.
PACKAGES = ("fastavro", "numpy")
#: What callbacks and plugin need of the job's C library at most: Ubuntu 22.04 and RHEL 9 have it.
NEWEST_GLIBC = (2, 34)
#: Parts of the standard library that no decoder needs.
LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo",
            "ensurepip", "lib2to3", "pydoc_data", "config-*", "*.a")  # fmt: skip
START = """\
#!/bin/sh
# Python for drumline's decoder. Libraries and packages of the job are for another one.
folder=${0%/*}
unset LD_PRELOAD LD_LIBRARY_PATH
export PYTHONHOME="$folder/runtime" PYTHONPATH="$folder/packages" PYTHONDONTWRITEBYTECODE=1
exec "$folder/runtime/lib/loader" --library-path "$folder/runtime/lib" --argv0 "$folder/runtime/bin/python3" \\
    "$folder/runtime/bin/python3" "$@"
"""


def unpack(wheels: Path, packages: Path) -> None:
    """Unpack drumline and what the decoder imports. Raises ValueError where a compiler's work is missing."""
    for name in ("drumline", *PACKAGES):
        [wheel] = wheels.glob(f"{name}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    built = [packages / "drumline/producers/collector/_callbacks.so",
             packages / "drumline/producers/nccl_profiler/libnccl-profiler-drumline.so"]  # fmt: skip
    if missing := [library.name for library in built if not library.exists()]:
        raise ValueError(f"built without a C compiler: {missing} are missing")
    for library in built:
        needed = max(tuple(map(int, text.split("."))) for text in re.findall(r"GLIBC_(\d+\.\d+)", versions(library)))
        if needed > NEWEST_GLIBC:
            raise ValueError(f"{library.name} needs glibc {needed}: jobs' images have {NEWEST_GLIBC}")


def versions(library: Path) -> str:
    """Return the text of a library, which has the versions of the symbols that it needs."""
    return library.read_bytes().decode("latin-1")


def libraries(files: list[Path]) -> dict[str, Path]:
    """Return the shared libraries that these files load: name -> path; the loader as `loader`."""
    named = {}
    for file in files:
        listed = subprocess.run(["ldd", file], capture_output=True, text=True, check=False).stdout
        for line in listed.splitlines():
            if match := re.match(r"\s*(?:(\S+) => )?(/\S+) \(", line):
                path = Path(match[2])
                named["loader" if path.name.startswith("ld-") else match[1] or path.name] = path
    return named


def runtime(folder: Path, packages: Path) -> None:
    """Copy this Python, its standard library and its libraries."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = folder / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*LEFT_OUT))
    (folder / "bin").mkdir()
    python = folder / "bin" / "python3"
    shutil.copy(os.path.realpath(sys.executable), python)
    extensions = [*library.rglob("*.so"), *packages.rglob("*.so")]
    for name, path in libraries([python, *extensions]).items():
        if not path.is_relative_to(packages):
            shutil.copy(path, folder / "lib" / name)


def main(wheels: Path, folder: Path) -> None:
    """Make the folder, and start its Python once."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    unpack(wheels, packages)
    runtime(folder / "runtime", packages)
    start = folder / "python"
    start.write_text(START)
    start.chmod(0o755)
    subprocess.run([start, "-c", "import numpy, fastavro, drumline.producers.decoder.session"], check=True)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
