"""State of the process that writes a ring."""

from __future__ import annotations

import os

from drumline.producers.rings.progress import EXITED, KILLED, RUNNING, STOPPED
from drumline.producers.rings.ring_file import HeaderField, RingFile, RingHeader


def process_state(ring: RingFile, header: RingHeader, ended: bool, is_still: bool) -> str:
    """Return the state (progress.STATES). `is_still`: only then is the kernel asked; not for another user's process."""
    if ended:
        return EXITED if header[HeaderField.ENDED] else KILLED
    if not is_still or os.geteuid() not in (0, ring.about.st_uid):
        return RUNNING
    try:
        pid = ring.process()
        with open(f"/proc/{pid}/stat") as status:
            code = status.read().rpartition(")")[2].split()[0] if pid else ""
    except (OSError, IndexError, ValueError):  # it has just ended, or the kernel shows no processes
        return RUNNING
    return STOPPED if code in ("T", "t") else RUNNING
