"""State of the process that writes a ring."""

from __future__ import annotations

import os
from pathlib import Path

from drumline.producers.host.targets import STATE, stat_fields
from drumline.producers.rings.progress import EXITED, KILLED, RUNNING, STOPPED
from drumline.producers.rings.ring_file import HeaderField, RingFile, RingHeader


def process_state(ring: RingFile, header: RingHeader, ended: bool, is_still: bool) -> str:
    """Return the state (progress.STATES). `is_still`: only then is the kernel asked; not for another user's process."""
    if ended:
        return EXITED if header[HeaderField.ENDED] else KILLED
    if not is_still or os.geteuid() not in (0, ring.about.st_uid):
        return RUNNING
    try:
        return running_state(ring.process())
    except OSError:  # it has just ended
        return RUNNING


def running_state(pid: int) -> str:
    """Return whether a process that has not ended is running or stopped; 0 = one that is not known."""
    try:
        state = stat_fields(Path(f"/proc/{pid}/stat").read_bytes())[STATE] if pid else b""
    except (OSError, IndexError, ValueError):  # it has just ended, or the kernel shows no processes
        return RUNNING
    return STOPPED if state in (b"T", b"t") else RUNNING
