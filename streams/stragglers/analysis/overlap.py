"""Waiting that is hidden in compute: a kernel that shares the GPU with a spinning NCCL kernel takes longer.

A rank that waits in a collective that overlaps compute shows more compute, not more exposed communication U
(attribution.py), and U counts that as own time. The hidden wait is how much longer compute took for the same work. It
is limited to the growth of the overlap of compute and communication; otherwise the GPU is just slower:

    hidden = min( longer compute, more overlap )
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from drumline.streams.stragglers.analysis.baseline import STEP
from drumline.streams.stragglers.analysis.window_data import (
    CommunicatorWindow,
    Floats,
    WindowData,
    comparable,
    peer_medians,
    step_length,
)

#: Columns that describe the work of a step, and columns that hold its time.
WORK = ("kernels", "blocks")
TIMES = ("compute_ns", "compute_overlapped_ns")
Sums = Mapping[str, Floats]


def hidden_waiting(
    data: WindowData,
    groups: Sequence[CommunicatorWindow],
    quorum: float,
    equal_ratio: float,
    baseline_step: Mapping[str, float],
) -> list[Floats]:
    """Return [m] ns over the window for each group: the hidden wait of a member's median peer, less the member's own.

    0 where ranks differ by design (roles, or a baseline of their own).

    `baseline_step`: the job's step in the baseline. A rank with as many kernels and blocks as the baseline, within
    `equal_ratio`, is measured by it. Its hidden wait is at most what the steps grew, and at most how far the member was
    behind: all GPUs may be slower together. A member with less work than the baseline may have waited as long as its
    overlap grew. Members and peers are measured by each other, if their work is the same, where the baseline is empty,
    all have other work than the baseline, or the communicator is only guessed.
    """
    alike = [at for at, group in enumerate(groups) if group.baseline is None and group.roles is None]
    compared = [groups[at] for at in alike]
    columns = (*WORK, *TIMES, "comm_exposed_ns")
    values = {name: [comparable(data, group, name, quorum) for group in compared] for name in columns}
    medians = {name: peer_medians(compared, values[name]) for name in columns}
    out = [np.zeros(len(group.members)) for group in groups]
    length = step_length(data)
    for number, at in enumerate(alike):
        sides = tuple({name: side[name][number] for name in columns} for side in (values, medians))
        out[at] = _hidden_wait(length, groups[at], sides, equal_ratio, baseline_step)
    return out


def _hidden_wait(
    length: Floats,
    group: CommunicatorWindow,
    sides: tuple[Sums, ...],
    equal_ratio: float,
    baseline_step: Mapping[str, float],
) -> Floats:
    """Return the hidden waits of one group. `length`: of each step; `sides`: [m, S] of members, and of their peers."""
    values, medians = sides
    both = np.isfinite(medians["comm_exposed_ns"]) & np.isfinite(values["comm_exposed_ns"])
    member, peer = (
        {name: np.where(both, column, 0.0).sum(1) for name, column in side.items()} for side in (values, medians)
    )
    alike = _same_work(member, peer, equal_ratio)
    peer_hidden = np.where(alike, _growth(member, peer), 0.0)
    member_hidden = np.where(alike, _growth(peer, member), 0.0)
    if baseline_step and not group.guessed:
        base = {name: baseline_step[name] * both.sum(1) for name in (*WORK, *TIMES)}
        peer_as_base = _same_work(peer, base, equal_ratio)
        steps_grew = np.where(both, length - baseline_step[STEP], 0.0).sum(1)
        seen = peer["comm_exposed_ns"] - member["comm_exposed_ns"]
        peer_hidden = np.where(peer_as_base, np.clip(steps_grew - seen, 0.0, _growth(base, peer)), peer_hidden)
        # With less work than the baseline, compute does not show how much of it was waiting: at most the added overlap.
        more = np.maximum(member["compute_overlapped_ns"] - base["compute_overlapped_ns"], 0.0)
        more = np.where(_no_more(member, base, equal_ratio), more, 0.0)
        measured = np.where(_same_work(member, base, equal_ratio), _growth(base, member), more)
        member_hidden = np.where(peer_as_base, measured, member_hidden)
    if not group.guessed:
        behind = np.maximum(np.where(both, group.lag_ns, 0.0).sum(1), 0.0)
        peer_hidden = np.clip(peer_hidden, 0.0, behind)
    return peer_hidden - member_hidden


def _no_more(left: Sums, right: Sums, ratio: float) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = np.all([left[name] <= ratio * right[name] for name in WORK], axis=0)
    return fits


def _same_work(left: Sums, right: Sums, ratio: float) -> NDArray[np.bool_]:
    return _no_more(left, right, ratio) & _no_more(right, left, ratio)


def _growth(before: Sums, now: Sums) -> Floats:
    longer, overlap = (now[name] - before[name] for name in TIMES)
    return np.clip(longer, 0.0, np.maximum(overlap, 0.0))
