"""What is measured gets a core of its own; what serves it runs on the others. Other programs may still be on any."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil


def own_core() -> str:
    """Keep this process, threads that come later included, on the last core; says so. Nothing on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return "one core for all"
    os.sched_setaffinity(0, cores[-1:])
    return f"core {cores[-1]}"


def off_that_core(pids: Iterable[int]) -> None:
    """Keep processes, all their threads, off the core that own_core() takes. Nothing on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    for pid in pids if len(cores) > 1 else ():
        with suppress(psutil.Error, OSError):
            for thread in psutil.Process(pid).threads():
                with suppress(OSError):  # it has just ended
                    os.sched_setaffinity(thread.id, cores[:-1])
