"""Waits that a table does not list: nothing runs on some ranks, and they go on at one moment.

A rank that was late by itself goes on when it is ready, before or after its peers. Ranks of one stage, or of one
pipeline, that go on together waited for something, such as an average of the loss. A table has one clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drumline.producers.activity.intervals import IntervalUnion
from drumline.schemas.columns import Array

#: Ranks go on together within this part of a step; the end of a shorter gap than ten times that is chance.
TOGETHER, LONG = 0.001, 0.01


def unrecorded_waiting(
    busy: Sequence[IntervalUnion], launches: Sequence[Array], groups: Sequence[Sequence[int]], step_ns: float
) -> list[IntervalUnion]:
    """Return when each rank waited for what was not recorded.

    `busy`: when an operation ran on each rank. `launches`: starts of its communication. `groups`: ranks that may wait
    together. `step_ns`: length of a step. A gap is a wait if it is long, ends with communication, and a gap of another
    rank of a group ends with it. It is one until the last of the peers' operations before its end.
    """
    gaps = [_gaps(union, starts, LONG * step_ns) for union, starts in zip(busy, launches, strict=True)]
    until = [np.zeros(len(gap.end), np.int64) for gap in gaps]
    is_open = True
    while is_open:  # a rank of two groups passes on what it waited for
        is_open = False
        for group in groups:
            for rank in group:
                later = _arrivals(rank, [peer for peer in group if peer != rank], busy, gaps, until, TOGETHER * step_ns)
                is_open = is_open or bool((later > until[rank]).any())
                until[rank] = np.maximum(until[rank], later)
    waiting = []
    for gap, end in zip(gaps, until, strict=True):
        is_wait = end > gap.start
        waiting.append(IntervalUnion(gap.start[is_wait], end[is_wait]))
    return waiting


def _gaps(busy: IntervalUnion, starts: Array, least_ns: float) -> IntervalUnion:
    """Return the times in which nothing ran that are long, and end with one of the `starts`."""
    start, end = busy.end[:-1], busy.start[1:]
    chosen = np.isin(end, starts) & (end - start >= least_ns)
    return IntervalUnion(start[chosen], end[chosen])


def _arrivals(
    rank: int,
    peers: Sequence[int],
    busy: Sequence[IntervalUnion],
    gaps: Sequence[IntervalUnion],
    until: Sequence[Array],
    distance: float,
) -> Array:
    """Return for each gap of a rank when the last of its peers had come; 0 if no peer goes on with it."""
    end = gaps[rank].end
    arrived, together = np.zeros(len(end), np.int64), np.zeros(len(end), bool)
    for peer in peers if len(end) else ():
        index = np.searchsorted(busy[peer].start, end) - 1
        known = np.minimum(busy[peer].end[np.maximum(index, 0)], end)
        arrived = np.maximum(arrived, np.where(index >= 0, known, 0))
        if len(gaps[peer].end):
            near = np.clip(np.searchsorted(gaps[peer].end, end - distance), 0, len(gaps[peer].end) - 1)
            is_near = np.abs(gaps[peer].end[near] - end) <= distance
            together |= is_near
            arrived = np.maximum(arrived, np.where(is_near, np.minimum(until[peer][near], end), 0))
    return np.where(together, arrived, 0)
