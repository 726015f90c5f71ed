"""Unions of time intervals, and the part of other intervals that they cover. int64 ns, half open: [start, end)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drumline.schemas.columns import Array


class IntervalUnion(NamedTuple):
    """Disjoint intervals in order of time. `start`, `end`: int64 ns."""

    start: Array
    end: Array

    def covered(self, start: Array, end: Array) -> Array:
        """Return the part of each [start, end) that lies in the union: int64 ns, same length; 0 where end <= start."""
        length: Array = np.maximum(self._before(end) - self._before(start), 0)
        return length

    def _before(self, at: Array) -> Array:
        """Return the length of the union before each time."""
        times = np.asarray(at, np.int64)
        if len(self.start) == 0:
            return np.zeros(len(times), np.int64)
        total = np.concatenate([[0], np.cumsum(self.end - self.start)])
        last = np.searchsorted(self.start, times, side="right") - 1
        clipped = np.maximum(last, 0)
        inside = np.minimum(times, self.end[clipped]) - self.start[clipped]
        return np.where(last >= 0, total[clipped] + inside, 0)


def union(*intervals: tuple[Array, Array]) -> IntervalUnion:
    """Return the union of any number of (starts, ends), in any order."""
    filled = [pair for pair in intervals if len(pair[0])]
    if len(filled) == 1 and isinstance(filled[0], IntervalUnion):
        return filled[0]
    start = np.concatenate([np.asarray(s, np.int64) for s, _ in intervals])
    end = np.concatenate([np.asarray(e, np.int64) for _, e in intervals])
    positive = end > start
    start, end = start[positive], end[positive]
    if len(start) == 0:
        return IntervalUnion(start, end)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    return IntervalUnion(start[first], reach[last])
