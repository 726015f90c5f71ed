"""Unions of intervals and how much of other intervals they cover. All int64 ns, half open [start, end)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drumline.schemas.columns import Array


class Union(NamedTuple):
    """Disjoint intervals in order of time."""

    start: Array
    end: Array

    def covered(self, start: Array, end: Array) -> Array:
        """How much of each [start, end) lies in the union: int64 ns, same length; 0 where end <= start."""
        length: Array = np.maximum(self._before(end) - self._before(start), 0)
        return length

    def _before(self, at: Array) -> Array:
        """Length of the union before each time."""
        times = np.asarray(at, np.int64)
        if len(self.start) == 0:
            return np.zeros(len(times), np.int64)
        total = np.concatenate([[0], np.cumsum(self.end - self.start)])
        last = np.searchsorted(self.start, times, side="right") - 1
        clipped = np.maximum(last, 0)
        inside = np.minimum(times, self.end[clipped]) - self.start[clipped]
        return np.where(last >= 0, total[clipped] + inside, 0)


def union(*intervals: tuple[Array, Array]) -> Union:
    """The union of any number of (starts, ends), in any order."""
    there = [one for one in intervals if len(one[0])]
    if len(there) == 1 and isinstance(there[0], Union):
        return there[0]
    start = np.concatenate([np.asarray(s, np.int64) for s, _ in intervals])
    end = np.concatenate([np.asarray(e, np.int64) for _, e in intervals])
    some = end > start
    start, end = start[some], end[some]
    if len(start) == 0:
        return Union(start, end)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    last = np.concatenate([first[1:] - 1, [len(start) - 1]])
    return Union(start[first], reach[last])
