"""Identity of the files behind descriptor numbers: a job may close numbers that it did not open, and use them again."""

from __future__ import annotations

import os


def file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of the file that a descriptor names now, None if it names none."""
    try:
        about = os.fstat(descriptor)
    except OSError:
        return None
    return about.st_dev, about.st_ino
