"""Root of all spools of a host: the folder in which each process has its own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drumline.producers.spool.directory import SpoolDirectory


def make_root(root: Path) -> None:
    """Create the folder of all spools if it is missing, writable for all users: jobs of any user may come first.

    Only a folder created here is opened to all: in its place may be a link. Raises OSError.
    """
    if root.is_dir():
        return
    try:
        root.mkdir(parents=True)
        root.chmod(0o1777 | root.stat().st_mode & stat.S_ISGID)  # the group that a folder above hands down stays
    except FileExistsError:
        if not root.is_dir():
            raise


def folders(root: Path) -> Iterator[SpoolDirectory]:
    """Yield all folders below `root` that are not hidden, oldest first. Raises OSError."""
    by_age = []
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                with suppress(FileNotFoundError):  # deleted since
                    about = entry.stat(follow_symlinks=False)
                    by_age.append((about.st_ctime_ns, entry.name, about.st_uid))
    for _, name, user in sorted(by_age):
        yield SpoolDirectory(root / name, user)
