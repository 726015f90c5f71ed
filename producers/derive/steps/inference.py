"""Steps of a job that marks none: a training step makes the same NCCL calls every time, so the calls have a period.

All ranks have to cut at the same call and count alike, without asking each other. Ranks of one program make the same
calls in the same order, so where a step begins and which number it has are functions of that order alone, from the
process's first call on: the period, of its rotations the smallest one, the whole periods before it. Recorded from the
middle of a job, ranks may number differently. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: A sequence is a step's if it comes so many times, one after the other.
MIN_STEPS = 5
#: Calls in which a period is looked for, and the longest one.
LOOKED_AT, LONGEST = 16_384, 2_048
#: Part of the calls that may differ from those one period before (checkpoints, evaluations, lost records).
MOST_UNLIKE = 0.1
#: Operations that all ranks leave together: a step has to end with one.
_TOGETHER = [nccl.OPERATIONS.index(name) for name in ("AllReduce", "AllGather", "ReduceScatter")]


@dataclass(frozen=True)
class Beat:
    """One step's calls: `symbols` [n, 3], see _symbols. `pause`: where the symbols are all alike, a call that comes so
    many CUDA calls after the one before begins a step; 0 = symbols tell."""

    symbols: Array
    pause: int = 0

    @property
    def size(self) -> int:
        return len(self.symbols)


def beat(each: Calls, apart: Array | None = None) -> Beat | None:
    """What the calls repeat; None if they do not. `apart`: CUDA calls (correlation ids) since the call before."""
    rows = _symbols(each)
    if len(rows) < 2 * MIN_STEPS:
        return None
    middle = max(0, (len(rows) - LOOKED_AT) // 2)
    rows = rows[middle : middle + LOOKED_AT]
    codes = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    size = _period(codes)
    if size == 0:
        return None
    if size == 1 and apart is not None:
        between = apart[middle : middle + LOOKED_AT]
        own = _period(between)
        if own > 1:
            between_steps = np.median(np.sort(between)[-(len(between) // own) :])
            return Beat(np.repeat(rows[len(rows) // 2][None], own, axis=0), int(between_steps) // 2)
    same = np.concatenate([[0], codes[size:] == codes[:-size], [0]])
    edges = np.flatnonzero(np.diff(same))
    longest = int(np.argmax(edges[1::2] - edges[::2]))
    one = slice(int(edges[2 * longest]), int(edges[2 * longest]) + size)
    turns = [np.roll(codes[one], -r) for r in range(size) if rows[one][r - 1][0] in _TOGETHER] or [codes[one]]
    first = min(turns, key=lambda turn: turn.tolist())
    return Beat(rows[[int(np.argmax(codes == code)) for code in first.tolist()]])


def inferred_steps(each: Calls, found: Beat, apart: Array | None = None, before: int = 0) -> Steps:
    """The steps in calls; `found` from beat(). Calls between two of them count as so many steps as would fit, so that a
    lost record shifts no number. `before`: steps that were counted in earlier calls."""
    rows, size = _symbols(each), found.size
    if found.pause and apart is not None:
        first = np.flatnonzero(apart >= found.pause)
        first = first[np.diff(first, append=len(rows)) == size]
        alike = (rows[first[:, None] + np.arange(size)] == found.symbols).all((1, 2))
        first = first[alike]
    else:
        match = np.ones(max(len(rows) - size + 1, 0), bool)
        for position in range(size):
            match &= (rows[position : position + len(match)] == found.symbols[position]).all(1)
        first = np.flatnonzero(match)
    if len(first) == 0:
        none = np.empty(0, np.int64)
        return Steps(none, none, none)
    gap = np.diff(first, prepend=-size) - size
    number = before + np.cumsum(np.floor(gap / size + 0.5).astype(np.int64) + 1) - 1
    start = each.start_ns[first]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    end = np.where(np.append(gap[1:], 1) == 0, following, each.start_ns[first + size - 1] + 1)
    return Steps(number, start, end)


def _symbols(each: Calls) -> Array:
    """[calls, 3] u8: operation, bytes, whether the communicator is another one than the call's before. Communicators
    themselves have other numbers on other ranks."""
    other = np.diff(each.communicator, prepend=each.communicator[:1]) != 0
    return np.stack([each.operation.astype(np.uint64), each.bytes, other.astype(np.uint64)], axis=1)


def _period(codes: Array) -> int:
    """The smallest period that is as good as any; 0 = none."""
    most = min(len(codes) // MIN_STEPS, LONGEST)
    unlike = np.array([np.count_nonzero(codes[n:] != codes[:-n]) / (len(codes) - n) for n in range(1, most + 1)])
    if len(unlike) == 0 or unlike.min() > MOST_UNLIKE:
        return 0
    return int(np.argmax(unlike <= 1.5 * unlike.min() + 2 / len(codes))) + 1
