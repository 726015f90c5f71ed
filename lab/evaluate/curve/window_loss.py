"""Measures how much healthy windows lose to ranks that wait for each other, from durations alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.lab.evaluate.curve.job_rows import Floats
from drumline.lab.evaluate.curve.timings import Operation, StepTimings, Synchronisation

#: Healthy windows that lose less are quiet; share of their time.
QUIET_SHARE = 0.05


def window_losses(runs: Sequence[Sequence[StepTimings]], window_steps: int) -> list[float]:
    """Return the share of its time that each window of steps in a row loses to its latest rank.

    A rank costs, in each step, its peers' longest wait for it less its own longest wait for them. Only the longest
    wait of a step counts: a host that runs ahead while its GPU waits uses its lead up behind the next operations.
    Windows in which ranks never meet are left out: what their steps lose is not known from waits.
    """
    out = []
    for run in runs:
        for first in range(0, len(run) - window_steps + 1, window_steps):
            steps = run[first : first + window_steps]
            if not any(map(_compared, steps)):
                continue
            late = np.sum([_lateness(step) for step in steps], axis=0)
            time = sum(float(np.median(step.columns["gpu_duration_ns"])) for step in steps)
            out.append(max(0.0, float(late.max())) / time)
    return out


def _compared(step: StepTimings) -> list[Operation]:
    """Return the operations that end for all members once the last has entered."""
    return [o for o in step.operations if o.synchronisation == Synchronisation.PEERS and len(o.members) > 1]


def _lateness(step: StepTimings) -> Floats:
    """Return how much later each rank was than its median peer; ns, negative where it waited."""
    ranks = len(step.columns["step"])
    most, least = np.zeros(ranks), np.zeros(ranks)
    for operation in _compared(step):
        durations = operation.duration_ns
        peers = np.array([np.median(np.delete(durations, member)) for member in range(len(durations))])
        late = peers - durations
        np.maximum.at(most, operation.members, late)
        np.minimum.at(least, operation.members, late)
    return most + least
