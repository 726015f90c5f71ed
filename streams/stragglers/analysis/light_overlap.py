"""Waits of light steps that were hidden behind compute: they count as compute, not as exposed communication.

NCCL alone does not show what ran beside a collective. The lateness stage shows by communicator how much of a change in
waits the gap to the next collective took up (streams/lateness/gap_changes.py). Where that is a fair part, and not by
chance, over this window and those before, the communicator overlaps compute: a rank then waited for as long as its
longest wait of the step, and computed during the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import WindowData

#: Communicator -> sums over the windows so far, their weight falling: changes in waits that gaps took up, all changes,
#: squares of what was taken up.
Hidden = dict[str, list[float]]


def with_unseen_waiting(data: WindowData) -> WindowData:
    """Return a light window in which no rank's exposed communication is below what it waited in one communicator.

    NCCL tells when an all-to-all had sent, not when it ended, so the wait in it counts as compute, or as idle where the
    host had called nothing more. The lateness stage knows it from when the ranks entered.
    """
    exposed = data.budget["comm_exposed_ns"]
    if not data.light or not data.communicators:
        return data
    waited = np.full(exposed.shape, -np.inf)
    for group in data.communicators:
        waited[group.members] = np.fmax(waited[group.members], group.wait_ns)
    unseen = np.nan_to_num(np.maximum(waited - exposed, 0.0), nan=0.0)
    compute, idle = data.budget["compute_ns"], data.budget["idle_ns"]
    of_compute = np.minimum(unseen, np.nan_to_num(compute))
    of_idle = np.minimum(unseen - of_compute, np.nan_to_num(idle))
    moved = {"compute_ns": compute - of_compute, "idle_ns": idle - of_idle}
    return replace(data, budget={**data.budget, **moved, "comm_exposed_ns": exposed + of_compute + of_idle})


def hidden_as_compute(
    data: WindowData, before: Mapping[str, list[float]], config: StragglerConfig
) -> tuple[WindowData, Hidden]:
    """Return the window with hidden waits moved to compute, and the sums through it. `before`: those before it."""
    sums = {name: list(known) for name, known in before.items()}
    if not data.light:
        return data, sums
    moved = np.zeros(data.budget["comm_exposed_ns"].shape)
    for group in data.communicators:
        part, change, spread = group.hidden
        if change.any():
            weights, known = np.array([1, 1, config.hidden_keep]) * config.hidden_keep, sums.get(group.name, [0.0] * 3)
            sums[group.name] = (weights * known + [part.sum(), change.sum(), (spread**2).sum()]).tolist()
        if is_hidden(sums.get(group.name), config):
            moved[group.members] += np.nan_to_num(group.hidden_wait_ns)
    moved = np.minimum(moved, data.budget["comm_exposed_ns"])
    exposed, compute = data.budget["comm_exposed_ns"] - moved, data.budget["compute_ns"] + moved
    return replace(data, budget={**data.budget, "comm_exposed_ns": exposed, "compute_ns": compute}), sums


def kept_hidden(before: Hidden, now: Hidden, share: float, config: StragglerConfig) -> Hidden:
    """Return the sums that the next window begins with. `share`: what the latest rank lost.

    From `critical` on, waits for it are beyond what gaps take up: they do not show that nothing is hidden.
    """
    is_stall = share >= config.critical
    return {
        name: before[name] if is_stall and is_hidden(before.get(name), config) else sums for name, sums in now.items()
    }


def is_hidden(sums: list[float] | None, config: StragglerConfig) -> bool:
    """Return whether a communicator with these sums overlaps compute."""
    if not sums or not sums[1]:
        return False
    part, change, squares = sums
    return part >= config.hidden_share * change and part >= config.hidden_spreads * math.sqrt(squares)
