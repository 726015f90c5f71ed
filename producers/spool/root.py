"""Root of all spools of a host: the folder in which each process has its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from drumline.producers.spool.directory import SpoolDirectory


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
