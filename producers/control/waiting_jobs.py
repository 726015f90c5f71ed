"""Names of the jobs whose processes wait for a policy (`drumline hook install`), as they announce themselves."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path

from drumline.producers.collector.late import WAITING, mark
from drumline.producers.spool.files import open_file, opened
from drumline.producers.spool.folder_layout import BadSpool
from drumline.producers.spool.location import make_root

#: Characters of a name that are its job's mark.
MARK = len(mark(""))
#: Age from which an announcement does not count; one is renewed once a second at most, at a step; s.
ALIVE_S = 300.0
#: Age at which the agent removes one whose process ended without; s.
LEFT_S = 86_400.0
#: Most announcements of a user that are read: the newest of each job, then the newest; most bytes of one.
MOST_OF_USER, MOST_BYTES = 256, 4_096
#: Most that are listed. Of a longer list a user's share stays, the rest is removed: a flood ends.
MOST_LISTED = 1 << 16


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
        users, is_cut = _by_user(folder)
        for announcements in users.values():
            announcements = _by_share(announcements)
            for changed_s, name in announcements[:MOST_OF_USER]:
                with suppress(OSError, BadSpool):
                    jobs |= {_job(folder, name)} if now_s - changed_s <= ALIVE_S else set()
            left = [announcement for announcement in announcements if now_s - announcement[0] > LEFT_S]
            for _, name in set(left) | set(announcements[MOST_OF_USER:] if is_cut else ()):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)
    return jobs - {""}


def _by_user(folder: int) -> tuple[dict[int, list[tuple[float, str]]], bool]:
    """Return time of change and name of the announcements of each user, and whether there are more. Raises OSError."""
    users: dict[int, list[tuple[float, str]]] = {}
    with os.scandir(folder) as entries:
        for entry in islice(entries, MOST_LISTED):
            with suppress(OSError):  # it was withdrawn
                about = entry.stat(follow_symlinks=False)
                users.setdefault(about.st_uid, []).append((about.st_mtime, entry.name))
        return users, next(entries, None) is not None


def _by_share(announcements: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """Return the newest announcement of each job, then the others, the newest first.

    A name begins with its job's mark, so that a job of many processes hides no other of its user.
    """
    by_job: dict[str, tuple[float, str]] = {}
    ordered = sorted(announcements, reverse=True)
    for announcement in ordered:
        by_job.setdefault(announcement[1][:MARK], announcement)
    newest = set(by_job.values())
    return [*by_job.values(), *(announcement for announcement in ordered if announcement not in newest)]


def _job(folder: int, name: str) -> str:
    """Return the job of an announcement. Raises OSError, BadSpool."""
    descriptor = open_file(name, directory=folder, any_owner=True)
    try:
        return os.read(descriptor, MOST_BYTES).decode(errors="replace")
    finally:
        os.close(descriptor)
