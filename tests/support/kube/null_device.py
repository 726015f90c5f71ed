"""A check that /dev/null is still the device: a program of root's that replaces it breaks the machine for everyone."""

import os
import stat
from pathlib import Path


def check_null(when: str, path: Path = Path(os.devnull)) -> None:
    """Exit unless /dev/null is the device, and say when it was not and how it is made again."""
    state = path.stat() if path.exists() else None
    if state is None or not stat.S_ISCHR(state.st_mode) or state.st_rdev != os.makedev(1, 3):
        remedy = f"rm -f {path}; mknod -m 666 {path} c 1 3"
        raise SystemExit(f"{path} is no character device 1:3 {when}; as root, make it again: {remedy}")
