"""Names of the jobs whose processes wait for a policy (`drumline hook install`), as they announce themselves."""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from drumline.producers.collector.late import WAITING

#: Age from which an announcement does not count; one is renewed about once a second, at a step; s.
ALIVE_S = 300.0
#: Age at which the agent removes one whose process ended without; s.
LEFT_S = 86_400.0
#: Most announcements that are read, and most bytes of one.
MOST, MOST_BYTES = 4_096, 4_096


def waiting_jobs(root: Path, now_s: float | None = None) -> set[str]:
    """Return the names of the jobs that wait on this host. Any user may write them: they only name jobs."""
    now_s = time.time() if now_s is None else now_s
    jobs: set[str] = set()
    try:
        names = os.listdir(root / WAITING)[:MOST]
    except OSError:
        return jobs
    for name in names:
        with suppress(OSError):
            descriptor = os.open(root / WAITING / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                about = os.fstat(descriptor)
                if not stat.S_ISREG(about.st_mode):
                    continue
                age_s = now_s - about.st_mtime
                if age_s > LEFT_S:
                    os.unlink(root / WAITING / name)
                elif age_s <= ALIVE_S:
                    jobs.add(os.read(descriptor, MOST_BYTES).decode(errors="replace"))
            finally:
                os.close(descriptor)
    return jobs - {""}
