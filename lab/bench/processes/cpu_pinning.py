"""Reserves the last core for the measured program. Programs outside of the benchmark may still run on it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil


def take_last_core() -> str:
    """Keep this process and its future threads on the last core and return its name. Does nothing on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return "one core for all"
    os.sched_setaffinity(0, cores[-1:])
    return f"core {cores[-1]}"


def keep_off_last_core(pids: Iterable[int]) -> None:
    """Keep all threads of these processes off the core of `take_last_core`. Does nothing on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    for pid in pids if len(cores) > 1 else ():
        with suppress(psutil.Error, OSError):
            for thread in psutil.Process(pid).threads():
                with suppress(OSError):  # it has just ended
                    os.sched_setaffinity(thread.id, cores[:-1])
