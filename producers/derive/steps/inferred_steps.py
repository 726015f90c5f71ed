"""Steps of a job without step markers: a training step makes the same NCCL calls every time, so the calls have a
period.

All ranks have to cut at the same call and count alike, without communication. Ranks of one program make the same calls
in the same order, so the begin of a step and its number are functions of that order alone, from the process's first
call on: the period, its smallest rotation, the whole periods before it. Recorded from the middle of a job, ranks may
number differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: Repetitions in a row that make a sequence a step.
MIN_STEPS = 5
#: Calls that are searched for a period, and the longest period.
MOST_CALLS, LONGEST_PERIOD = 16_384, 2_048
#: Share of the calls that may differ from those one period before (checkpoints, evaluations, lost records).
MOST_UNLIKE = 0.1
#: Operations that all ranks leave together: a step ends with one.
_TOGETHER = [nccl.OPERATIONS.index(name) for name in ("AllReduce", "AllGather", "ReduceScatter")]


@dataclass(frozen=True)
class CallPeriod:
    """Calls of one step.

    Attributes:
        symbols: [n, 3], see _symbols.
        min_gap: where all symbols are equal, a call so many CUDA calls after the one before begins a step; 0 = symbols
            decide.
    """

    symbols: Array
    min_gap: int = 0

    @property
    def size(self) -> int:
        """Return the number of calls in a step."""
        return len(self.symbols)


def find_period(calls: NcclCalls, id_gaps: Array | None = None) -> CallPeriod | None:
    """Return the period of the calls; None if they have none. `id_gaps`: CUDA calls (correlation ids) since the call
    before.
    """
    rows = _symbols(calls)
    if len(rows) < 2 * MIN_STEPS:
        return None
    middle = max(0, (len(rows) - MOST_CALLS) // 2)
    rows = rows[middle : middle + MOST_CALLS]
    codes = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    size = _period(codes)
    if size == 0:
        return None
    if size == 1 and id_gaps is not None:
        between = id_gaps[middle : middle + MOST_CALLS]
        alternating = _period(between)
        if alternating > 1:
            between_steps = np.median(np.sort(between)[-(len(between) // alternating) :])
            return CallPeriod(np.repeat(rows[len(rows) // 2][None], alternating, axis=0), int(between_steps) // 2)
    same = np.concatenate([[0], codes[size:] == codes[:-size], [0]])
    edges = np.flatnonzero(np.diff(same))
    longest = int(np.argmax(edges[1::2] - edges[::2]))
    first_run = slice(int(edges[2 * longest]), int(edges[2 * longest]) + size)
    rotations = [np.roll(codes[first_run], -r) for r in range(size) if rows[first_run][r - 1][0] in _TOGETHER] or [
        codes[first_run]
    ]
    first = min(rotations, key=lambda rotation: rotation.tolist())
    return CallPeriod(rows[[int(np.argmax(codes == code)) for code in first.tolist()]])


def inferred_steps(calls: NcclCalls, period: CallPeriod, id_gaps: Array | None = None, before: int = 0) -> Steps:
    """Return the steps in calls.

    Calls between two steps count as the number of steps that would fit, so a lost record shifts no number. `before`:
    steps that were counted in earlier calls.
    """
    rows, size = _symbols(calls), period.size
    if period.min_gap and id_gaps is not None:
        first = np.flatnonzero(id_gaps >= period.min_gap)
        first = first[np.diff(first, append=len(rows)) == size]
        alike = (rows[first[:, None] + np.arange(size)] == period.symbols).all((1, 2))
        first = first[alike]
    else:
        match = np.ones(max(len(rows) - size + 1, 0), bool)
        for position in range(size):
            match &= (rows[position : position + len(match)] == period.symbols[position]).all(1)
        first = np.flatnonzero(match)
    if len(first) == 0:
        none = np.empty(0, np.int64)
        return Steps(none, none, none)
    gap = np.diff(first, prepend=-size) - size
    number = before + np.cumsum(np.floor(gap / size + 0.5).astype(np.int64) + 1) - 1
    start = calls.start_ns[first]
    following = np.append(start[1:], np.iinfo(np.int64).max)
    end = np.where(np.append(gap[1:], 1) == 0, following, calls.start_ns[first + size - 1] + 1)
    return Steps(number, start, end)


def _symbols(calls: NcclCalls) -> Array:
    """Return [calls, 3] u8: operation, bytes, and whether the communicator differs from the call's before.

    Communicators themselves have other numbers on other ranks.
    """
    other = np.diff(calls.communicator, prepend=calls.communicator[:1]) != 0
    return np.stack([calls.operation.astype(np.uint64), calls.bytes, other.astype(np.uint64)], axis=1)


def _period(codes: Array) -> int:
    """Return the smallest period about as good as the best one; 0 = none."""
    longest = min(len(codes) // MIN_STEPS, LONGEST_PERIOD)
    unlike = np.array([np.count_nonzero(codes[n:] != codes[:-n]) / (len(codes) - n) for n in range(1, longest + 1)])
    if len(unlike) == 0 or unlike.min() > MOST_UNLIKE:
        return 0
    return int(np.argmax(unlike <= 1.5 * unlike.min() + 2 / len(codes))) + 1
