"""Lockstep groups: ranks that meet in some communicator, directly or through other ranks.

The lost time and the cause of a rank are measured against its lockstep group too, not only against the ranks of one
communicator. Of two ranks that meet, the data does not show which is at fault, and a rank with less work waits for a
partner that is as fast as all others.
"""

from __future__ import annotations

import numpy as np

from drumline.streams.stragglers.analysis.pipelines import joined
from drumline.streams.stragglers.analysis.window_data import GUESSED, WORST_ROW, CommunicatorWindow, Ints, WindowData


def lockstep_groups(data: WindowData) -> list[CommunicatorWindow]:
    """Return a group for each set of ranks of one role that run in lockstep.

    Its size is 0, so that its members are compared however few are present. `wait_ns` is 0 where a rank was compared in
    any communicator, NaN elsewhere; `lag_ns` is the largest of its communicators.
    """
    communicators = [group for group in data.communicators if group.baseline is None]
    shape = data.budget["comm_exposed_ns"].shape
    wait, lag = np.full(shape, np.nan), np.full(shape, np.nan)
    for group in communicators:
        members = group.members
        wait[members] = np.where(np.isfinite(group.wait_ns), 0.0, wait[members])
        lag[members] = np.fmax(lag[members], group.lag_ns)
    name = GUESSED if any(group.guessed for group in communicators) else ""
    have_roles = any(group.roles is not None for group in communicators)
    out = []
    for ranks in joined(part.tolist() for group in communicators for part in _by_role(group)):
        members = np.array(sorted(ranks), np.int64)
        roles = np.zeros(len(members), np.int64) if have_roles else None
        worst = np.zeros((len(members), shape[1]), WORST_ROW)
        out.append(CommunicatorWindow(name, 0, members, wait[members], wait[members], worst, lag[members], roles))
    return out


def _by_role(group: CommunicatorWindow) -> list[Ints]:
    if group.roles is None:
        return [group.members]
    return [group.members[group.roles == role] for role in np.unique(group.roles)]
