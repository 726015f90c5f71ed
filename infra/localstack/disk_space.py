"""Space on the disks of a local stack's state: what a start needs, and which disks have less."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State

#: Free space for a start; MB. A new stack with all topics and tables has written a fifth of it; the rest is for first
#: records and rows, ClickHouse's merges, and logs, which are cut at 8 MB.
NEEDED_MB = {"kafka": 16, "clickhouse": 16, "logs": 16}
MB = 1_000_000
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMEDY = "free some, or set DRUMLINE_LOCAL__STATE to a folder on another disk"


def short_disks(settings: Settings) -> list[str]:
    """Return a sentence for a file system of the state with less free space than a start needs; none where all do.

    Folders on one file system need their sum; those of a server elsewhere need nothing.
    """
    root, disks = State.of(settings).root, defaultdict[int, list[str]](list)
    for name in NEEDED_MB:
        if not {"kafka": settings.kafka.bootstrap, "clickhouse": settings.clickhouse.url}.get(name):
            disks[_existing(root / name).stat().st_dev].append(name)
    sentences = []
    for names in disks.values():
        folder = _existing(root / names[0] if len(disks) > 1 else root)
        needed, disk = sum(NEEDED_MB[name] for name in names), os.statvfs(folder)
        free, size = disk.f_bavail * disk.f_frsize // MB, disk.f_blocks * disk.f_frsize // MB
        if free < needed:
            sentences.append(
                f"the disk of {folder} is full: {free} of {size} MB are free; {', '.join(names)} need {needed} MB"
            )
    return sentences


def require_space(settings: Settings) -> None:
    """Check the disks before a start. Raises StackError with what is full, and how much is needed."""
    if sentences := short_disks(settings):
        raise StackError(f"{'; '.join(sentences)}; {REMEDY}")


@contextmanager
def space_errors(settings: Settings) -> Iterator[None]:
    """Raise StackError, with the disk, where the block finds no space; and add full disks to a StackError."""
    try:
        yield
    except StackError as error:
        sentences = [sentence for sentence in short_disks(settings) if sentence not in str(error)]
        if not sentences:
            raise
        raise StackError(f"{error}\n{'; '.join(sentences)}; {REMEDY}") from error
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        place, needed = error.filename or settings.local.state, sum(NEEDED_MB.values())
        sentences = short_disks(settings) or [f"no space for {place}: {error.strerror}; a start needs {needed} MB"]
        raise StackError(f"{'; '.join(sentences)}; {REMEDY}") from error


def _existing(path: Path) -> Path:
    """Return the path, or the nearest folder above that exists and can be looked into."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))
