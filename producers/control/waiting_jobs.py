"""Names of the jobs whose processes wait for a policy (`drumline hook install`), as they announce themselves."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from drumline.producers.collector.late import WAITING
from drumline.producers.spool.files import open_file, opened
from drumline.producers.spool.layout import BadSpool
from drumline.producers.spool.location import make_root

#: Age from which an announcement does not count; one is renewed once a second at most, at a step; s.
ALIVE_S = 300.0
#: Age at which the agent removes one whose process ended without; s.
LEFT_S = 86_400.0
#: Most announcements that are read, and most bytes of one.
MOST, MOST_BYTES = 4_096, 4_096


def make_folder(root: Path) -> None:
    """Create the folder of the announcements, so that no job's umask decides who may write there.

    A problem is left to the jobs: they look again.
    """
    with suppress(OSError):
        make_root(root / WAITING)


def waiting_jobs(root: Path, now_s: float | None = None) -> set[str]:
    """Return the names of the jobs that wait on this host. Any user may write them: they only name jobs."""
    now_s = time.time() if now_s is None else now_s
    jobs: set[str] = set()
    with suppress(OSError), opened(root / WAITING) as folder:
        for name in os.listdir(folder)[:MOST]:
            with suppress(OSError, BadSpool):
                jobs.add(_job(folder, name, now_s))
    return jobs - {""}


def _job(folder: int, name: str, now_s: float) -> str:
    """Return the job of an announcement, "" for an old one; a very old one is removed. Raises OSError, BadSpool."""
    descriptor = open_file(name, directory=folder, any_owner=True)
    try:
        age_s = now_s - os.fstat(descriptor).st_mtime
        if age_s > LEFT_S:
            os.unlink(name, dir_fd=folder)
        return os.read(descriptor, MOST_BYTES).decode(errors="replace") if age_s <= ALIVE_S else ""
    finally:
        os.close(descriptor)
