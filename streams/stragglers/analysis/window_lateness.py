"""WindowLateness: how late the ranks of one window are, as the test of chance counts it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData, step_length

#: One step in so many may be late without a reason: a checkpoint, a pause.
ODD_STEPS = 10
#: Ranks compared in fewer than this part of the steps of others are not late: what they lost is of a few steps.
COMPARED = 0.5


class WindowLateness:
    """Holds the lateness of R ranks in one window; ns a step.

    `longest_before`: rank -> its latest step of the window before, which shows that such steps are not odd.

    Attributes:
        lateness: [R] what a rank lost; its latest steps, one in ten, count no more than the next.
        often: [R] the same without what the window before shows.
        longest: [R] by how much a rank was late in its latest step; ns.
        step_ns, busy_ns: the mean step, and the mean busy time in it of the least busy rank.
    """

    def __init__(self, data: WindowData, attribution: Attribution, longest_before: Mapping[int, float]) -> None:
        steps = np.maximum(1, attribution.steps)
        latest, next_to = _latest_steps(attribution.behind_ns)
        self.longest = latest.max(axis=1, initial=0.0)
        is_compared = attribution.steps >= COMPARED * attribution.steps.max(initial=0)
        before = np.array([longest_before.get(rank, 0.0) for rank in data.ranks.tolist()])
        lost_ns = np.where(is_compared, attribution.lost_ns, 0.0)
        self.often = _without(lost_ns, latest, next_to) / steps
        self.lateness = _without(lost_ns, latest, np.maximum(next_to, before)) / steps
        self.step_ns, self.busy_ns = _step_and_busy(data, attribution)


def _without(lost_ns: Floats, latest: Floats, most: Floats) -> Floats:
    """Return [R] ns that ranks lost, with none of the latest steps later than `most`."""
    return np.asarray(np.maximum(lost_ns - np.maximum(latest - most[:, None], 0.0).sum(axis=1), 0.0))


def _step_and_busy(data: WindowData, attribution: Attribution) -> tuple[float, float]:
    """Return the mean step, and the mean busy time in it of the least busy rank; ns.

    A rank's own time is what it neither waits for others nor is late by. The job's work makes it longer on all ranks.
    """
    length = step_length(data)
    if not np.isfinite(length).any():
        return 0.0, 0.0
    busy = data.budget["gpu_duration_ns"] - data.budget["comm_exposed_ns"]
    known = np.isfinite(busy)
    counts = known.sum(1)
    means = np.where(known, busy, 0.0).sum(1) / np.maximum(1, counts)
    means -= attribution.lost_ns / np.maximum(1, attribution.steps)
    return float(np.nanmean(length)), float(np.maximum(means[counts > 0], 0.0).min())


def _latest_steps(behind_ns: Floats) -> tuple[Floats, Floats]:
    """Return [R, n] by how much each rank was late in its latest steps, one in ten, and [R] in the next; at least 0."""
    late = np.where(np.isfinite(behind_ns), np.maximum(behind_ns, 0.0), 0.0)
    count = min(late.shape[1], max(1, late.shape[1] // ODD_STEPS))
    most = np.pad(np.sort(late, axis=1)[:, ::-1], ((0, 0), (0, 1)))
    return most[:, :count], most[:, count]
