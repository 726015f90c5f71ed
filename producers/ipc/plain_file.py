"""Opens files that any user may have laid: a link is not followed, and what is no plain file is refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class NotPlainFile(OSError):
    """A folder, a FIFO or a device in the place of a file."""


def open_plain(name: str | Path, access: int = os.O_RDONLY, directory: int | None = None) -> int:
    """Open a plain file and return its descriptor; never waits. Raises OSError, also for a link.

    `directory`: descriptor of the folder that `name` lies in.
    """
    descriptor = os.open(name, access | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o660, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainFile(f"{name} is no plain file")
    return descriptor
