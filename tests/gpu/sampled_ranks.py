"""Sampling of the Python stacks of several ranks at the same time."""

import time
from collections.abc import Sequence

from drumline.producers.stacks.permission import Subject
from drumline.producers.stacks.sampling_run import RATE, Recording, py_spy


def sampled(pids: Sequence[int], length_s: int, parts: int = 1) -> list[Recording]:
    """Return the samplings of processes, to be finished."""
    running = [Recording(Subject.of(pid), py_spy(), length_s, parts) for pid in pids]
    until = time.monotonic() + length_s
    while time.monotonic() < until:
        for recording in running:
            recording.poll()
        time.sleep(1 / RATE)
    return running
