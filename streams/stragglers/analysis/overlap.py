"""Waiting that hides in compute: a kernel that shares the GPU with a spinning NCCL kernel takes longer.

Who waits in a collective that overlaps compute shows more compute, not more exposed communication U (blame.py), and U
counts that as own time. It is what compute took longer for the same work, and no more than compute and communication
overlapped longer, or the GPU would just be slower:

    hidden = min( longer compute, more overlap )
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from drumline.streams.stragglers.analysis.attribution import Floats, Meeting, WindowTable, comparable, norm, step_length
from drumline.streams.stragglers.analysis.baseline import STEP

#: What the work is, and how it went; per step.
WORK = ("kernels", "blocks")
TOOK = ("compute_ns", "compute_overlapped_ns")
Sums = Mapping[str, Floats]


def hidden(
    table: WindowTable, meeting: Meeting, quorum: float, equal_ratio: float, usual: Mapping[str, float]
) -> Floats:
    """[m] ns over the window: how much waiting of its median peer U misses, less what it misses of a member's own.
    0 where ranks are not alike by design.

    `usual`: the job's step when nobody was late (past.py). A rank whose kernels and blocks are as many as then, within
    `equal_ratio`, is measured by it; the job lost no more than its steps grew, nor than the member ever was behind,
    though: all GPUs may be slower together. A member with less work than then may have waited as long as it overlapped
    more. Where `usual` is empty, all have other work than then, or the communicator is only guessed, the member and its
    peers are measured by each other, if their work is the same.
    """
    if meeting.usual is not None or meeting.roles is not None:
        return np.zeros(len(meeting.members))
    values = {name: comparable(table, meeting, name, quorum) for name in (*WORK, *TOOK, "comm_exposed_ns")}
    others = {name: norm(meeting, of) for name, of in values.items()}
    both = np.isfinite(others["comm_exposed_ns"]) & np.isfinite(values["comm_exposed_ns"])
    own, peers = ({name: np.where(both, of, 0.0).sum(1) for name, of in side.items()} for side in (values, others))
    alike = _same_work(own, peers, equal_ratio)
    theirs, mine = (np.where(alike, waited, 0.0) for waited in (_waited(own, peers), _waited(peers, own)))
    if usual and not meeting.guessed:
        then = {name: usual[name] * both.sum(1) for name in (*WORK, *TOOK)}
        as_then = _same_work(peers, then, equal_ratio)
        grew = np.where(both, step_length(table) - usual[STEP], 0.0).sum(1)
        seen = peers["comm_exposed_ns"] - own["comm_exposed_ns"]
        theirs = np.where(as_then, np.clip(grew - seen, 0.0, _waited(then, peers)), theirs)
        # With less work than then, compute says nothing of how much of it was waiting: up to all that overlaps more.
        more = np.maximum(own["compute_overlapped_ns"] - then["compute_overlapped_ns"], 0.0)
        more = np.where(_no_more(own, then, equal_ratio), more, 0.0)
        mine = np.where(as_then, np.where(_same_work(own, then, equal_ratio), _waited(then, own), more), mine)
    if not meeting.guessed:
        theirs = np.clip(theirs, 0.0, np.maximum(np.where(both, meeting.lag_ns, 0.0).sum(1), 0.0))
    return theirs - mine


def _no_more(one: Sums, other: Sums, ratio: float) -> NDArray[np.bool_]:
    fits: NDArray[np.bool_] = np.all([one[name] <= ratio * other[name] for name in WORK], axis=0)
    return fits


def _same_work(one: Sums, other: Sums, ratio: float) -> NDArray[np.bool_]:
    return _no_more(one, other, ratio) & _no_more(other, one, ratio)


def _waited(before: Sums, now: Sums) -> Floats:
    longer, overlap = (now[name] - before[name] for name in TOOK)
    return np.clip(longer, 0.0, np.maximum(overlap, 0.0))
