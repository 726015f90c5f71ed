"""The local ClickHouse engine as a process: `python -m ...localstack.clickhouse.process FOLDER LOGS DATABASE`.

It ends when its stdin is closed.

The wheel `chdb-core` links clickhouse-local, which can listen for HTTP and native clients. The way in is its private
binding `_chdb.query`, hence the exact version in pyproject.toml, the test of that version in
tests/infra/localstack/clickhouse/test_engine.py, and the fallback in docs/guide/local-stack.md.
FOLDER holds conf/ (config.xml, users.xml), data/ and backups/.

clickhouse-local starts as user `default` without a password and has no option for that; users.xml allows that user
one session, the one of this process, so no client can log in with it. The last statement reads stdin: it blocks until
the other end closes it, which stops the engine cleanly, also when the supervisor has exited.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumline.infra.localstack.clickhouse.sandbox import confine
from drumline.infra.runtime.exit_codes import FAILED

VERSION = "26.9.0"
BINDING = "_chdb.abi3.so"
RTLD_DEEPBIND = 0x8
#: Files of the system that the engine reads: libraries, time zones, size and load of the machine. No secrets.
SYSTEM = [
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/etc/localtime",
    "/etc/timezone",
    "/etc/ld.so.cache",
    "/dev/null",
    "/dev/urandom",
    "/proc/self",
    "/proc/meminfo",
    "/proc/cpuinfo",
    "/proc/stat",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/mounts",
    "/sys/devices/system",
    "/sys/fs/cgroup",
]
#: The database is there before anyone logs in: the readers' default database must exist. The last statement would look
#: every 0.1 s (`interactive_delay`, us) whether there is progress to report.
STATEMENTS = """
CREATE DATABASE IF NOT EXISTS {database};
SYSTEM START LISTEN HTTP;
SYSTEM START LISTEN TCP;
SELECT * FROM file('/dev/stdin', 'LineAsString') SETTINGS interactive_delay = 10000000
"""


def wheel_folder() -> Path:
    """Return the folder of the wheel's extension module. Raises RuntimeError: not installed, or another version."""
    try:
        installed = importlib.metadata.version("chdb-core")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    package = importlib.util.find_spec("chdb")
    if installed != VERSION or package is None or not package.submodule_search_locations:
        raise RuntimeError(f"chdb-core {VERSION} is needed, found {installed}: pip install 'chdb-core=={VERSION}'")
    return Path(package.submodule_search_locations[0])


def load_binding(folder: Path) -> Any:
    """Return the extension module, without `import chdb`, which starts another engine first (0.5 s, 100 MB).

    Raises:
        RuntimeError: it cannot be loaded.
    """
    library = folder / BINDING
    os.chdir(folder)  # its companions are found by relative path
    # As the wheel does it: its memory functions must come from itself, not from another library in this process.
    ctypes.CDLL(str(library), mode=sys.getdlopenflags() | RTLD_DEEPBIND)
    spec = importlib.util.spec_from_file_location("chdb._chdb", library)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"{library} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_write_check() -> Callable[[bytes, bytes, int], int] | None:
    """Return the function that has the process end at the first write that fails; None if it was not built."""
    built = Path(__file__).with_name("_failed_writes.so")
    if not built.exists():
        return None
    check: Callable[[bytes, bytes, int], int] = ctypes.CDLL(str(built)).end_at_failed_writes
    return check


def main() -> int:
    """Run the engine until its stdin is closed; return the exit code."""
    folder, logs, database = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
    os.umask(0o077)
    wheel = wheel_folder()
    write_check = load_write_check()  # before the folder with it cannot be read any more
    python = [Path(sys.prefix), Path(sys.base_prefix)]
    if not confine(
        writable=[folder / "data", folder / "backups", logs],
        readable=[folder / "conf", wheel.parent, *python, *map(Path, SYSTEM)],
    ):
        print("no Landlock in this kernel: users of the engine can read your files by SQL", file=sys.stderr)
    binding = load_binding(wheel)
    if write_check is None or not write_check(bytes(wheel / BINDING), bytes(folder / "data"), FAILED):
        print(
            "a write that fails is not noticed, as on a full disk: install drumline with a C compiler", file=sys.stderr
        )
    os.chdir(folder / "conf")  # config.xml is read from the working directory
    # TabSeparated becomes the default format of HTTP answers, which clients rely on.
    binding.query(STATEMENTS.format(database=database), "TabSeparated", path=str(folder / "data"))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:
        print(f"the engine ended: {error}", file=sys.stderr)
        sys.exit(FAILED)
