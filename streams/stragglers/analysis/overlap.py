"""Waiting that is hidden in compute: a kernel that shares the GPU with a spinning NCCL kernel takes longer.

A rank that waits in a collective that overlaps compute shows more compute, not more exposed communication U
(attribution.py), and U counts that as own time. The hidden wait is how much longer compute took for the same work. It
is limited to the growth of the overlap of compute and communication; otherwise the GPU is just slower:

    hidden = min( longer compute, more overlap )
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from drumline.streams.stragglers.analysis.baseline import STEP
from drumline.streams.stragglers.analysis.window_data import (
    CommunicatorWindow,
    Floats,
    WindowData,
    comparables,
    peer_medians,
    step_length,
)

#: Columns that describe the work of a step, and columns that hold its time.
WORK = ("kernels", "blocks")
TIMES = ("compute_ns", "compute_overlapped_ns")
Sums = Mapping[str, Floats]
#: Steps of members that are compared together: some MB with all that is computed of them.
PASS_VALUES = 1 << 16


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
    out = [np.zeros(len(group.members)) for group in groups]
    length = step_length(data)
    for numbers in _passes(compared):
        alongside = [compared[number] for number in numbers]
        lag_ns = None if alongside[0].guessed else np.stack([group.lag_ns for group in alongside])
        both, sides = _sums(data, alongside, quorum)
        hidden = _hidden_wait(length, lag_ns, both, sides, equal_ratio, baseline_step)
        for number, block in zip(numbers, hidden, strict=True):
            out[alike[number]] = block
    return out


def _sums(
    data: WindowData, groups: Sequence[CommunicatorWindow], quorum: float
) -> tuple[NDArray[np.bool_], tuple[Sums, Sums]]:
    """Return [G, m, S] in which steps a member and its peers are known, and [G, m] what both spent in them, by column.

    One column at a time is in memory.
    """
    both, member, peer = None, dict[str, Floats](), dict[str, Floats]()
    for name in ("comm_exposed_ns", *WORK, *TIMES):
        values = comparables(data, groups, (name,), quorum)[name]
        medians = np.stack(peer_medians(groups, values))
        blocks = np.stack(values)
        if both is None:
            both = np.isfinite(medians) & np.isfinite(blocks)
        member[name], peer[name] = (np.where(both, side, 0.0).sum(2) for side in (blocks, medians))
    assert both is not None
    return both, (member, peer)


def _passes(groups: Sequence[CommunicatorWindow]) -> Iterator[list[int]]:
    """Yield the indices of groups of one size that are all guessed, or none is, and that fill some MB at most."""
    alike: dict[tuple[tuple[int, ...], bool], list[int]] = {}
    for number, group in enumerate(groups):
        alike.setdefault((group.wait_ns.shape, group.guessed), []).append(number)
    for (shape, _), numbers in alike.items():
        most = max(1, PASS_VALUES // max(1, math.prod(shape)))
        yield from (numbers[begin : begin + most] for begin in range(0, len(numbers), most))


def _hidden_wait(
    length: Floats,
    lag_ns: Floats | None,
    both: NDArray[np.bool_],
    sides: tuple[Sums, Sums],
    equal_ratio: float,
    baseline_step: Mapping[str, float],
) -> Floats:
    """Return the hidden waits of G groups, [G, m]. `length`: of each step; `lag_ns`: [G, m, S], None = the groups are
    guessed; `both`, `sides`: of `_sums`.
    """
    member, peer = sides
    alike = _same_work(member, peer, equal_ratio)
    peer_hidden = np.where(alike, _growth(member, peer), 0.0)
    member_hidden = np.where(alike, _growth(peer, member), 0.0)
    if baseline_step and lag_ns is not None:
        base = {name: baseline_step[name] * both.sum(2) for name in (*WORK, *TIMES)}
        peer_as_base = _same_work(peer, base, equal_ratio)
        steps_grew = np.where(both, length - baseline_step[STEP], 0.0).sum(2)
        seen = peer["comm_exposed_ns"] - member["comm_exposed_ns"]
        peer_hidden = np.where(peer_as_base, np.clip(steps_grew - seen, 0.0, _growth(base, peer)), peer_hidden)
        # With less work than the baseline, compute does not show how much of it was waiting: at most the added overlap.
        more = np.maximum(member["compute_overlapped_ns"] - base["compute_overlapped_ns"], 0.0)
        more = np.where(_no_more(member, base, equal_ratio), more, 0.0)
        measured = np.where(_same_work(member, base, equal_ratio), _growth(base, member), more)
        member_hidden = np.where(peer_as_base, measured, member_hidden)
    if lag_ns is not None:
        behind = np.maximum(np.where(both, lag_ns, 0.0).sum(2), 0.0)
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
