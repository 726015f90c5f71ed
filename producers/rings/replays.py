"""Steps of operations inside CUDA graphs.

NCCL reports them when the GPU comes to them, which may be steps after the job launched the graph. The job marks each
launch (GRAPH_REPLAY), with the range of the numbers that NCCL's calls had at the capture. So the k-th operation with a
number belongs to the k-th launch whose range holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.rings.ring_file import Kind, written
from drumline.producers.rings.state import Replay, RingState
from drumline.producers.rings.step_cuts import Segments
from drumline.schemas.columns import Array

#: Segment of a launch whose step is published already.
PUBLISHED = -1
_NONE, _FAR = -1, np.iinfo(np.int64).max
_LOW = (1 << 32) - 1


@dataclass(frozen=True)
class ReplayedOperations:
    """Launch of each operation.

    Attributes:
        replays: the launches, in order.
        position: of their marks; below 0 for those that were read before.
        segment: of their steps.
        of: launch of each operation, -1 = none: it is not in a graph, or no launch is known.
        complete: which launches' operations are all there.
    """

    replays: list[Replay]
    position: Array
    segment: Array
    of: Array
    complete: Array

    def first_waiting(self, since: int) -> int:
        """Return the segment of the first launch, from position `since` on, that lacks operations."""
        waiting = self.segment[~self.complete & (self.position >= since) & (self.segment >= 0)]
        return int(waiting.min(initial=_FAR))

    def segments(self, recorded: Array) -> Array:
        """Return the segment of each operation; `recorded`: of its record."""
        return np.where(self.of >= 0, np.append(self.segment, 0)[self.of], recorded)

    def order(self, at: Array) -> Array:
        """Return by what to sort the operations so that they are in the order of their calls."""
        return np.where(self.of >= 0, np.append(self.position, 0)[self.of], at)

    def called_ns(self, recorded: Array) -> Array:
        """Return when the host called each operation: launched its graph."""
        launched = np.array([*(replay.host_ns for replay in self.replays), 0], np.uint64)
        return np.where(self.of >= 0, launched[self.of], recorded)

    def rest(self, called: Array, at: Array, end: int) -> list[Replay]:
        """Return the launches before position `end` that have operations behind it, without those before it."""
        result = []
        for index in np.flatnonzero(self.position < end).tolist():
            replay, its = self.replays[index], self.of == index
            if not self.complete[index] or (its & (at >= end)).any():
                before = called["captured"][its & (at < end)].tolist()
                result.append(Replay(replay.step, replay.host_ns, replay.first, replay.last, [*replay.seen, *before]))
        return result


def replayed(records: Array, called: Array, segments: Segments, state: RingState) -> ReplayedOperations | None:
    """Return the launches of the operations `called` among the records; None if there are none, or not all."""
    captured = called["captured"]
    marks = np.flatnonzero((records["kind"] == Kind.GRAPH_REPLAY) & written(records, state.position))
    if state.dropped_seen or not (len(marks) or state.replays):  # which launches were dropped, nobody knows
        return None
    numbers = segments.number[segments.of(marks)].tolist()
    replays, positions = list(state.replays), [index - len(state.replays) for index in range(len(state.replays))]
    for at, number in zip(marks.tolist(), numbers, strict=True):
        bounds, launched = int(records["count"][at]), int(records["host_ns"][at])
        replay = Replay(number, launched, bounds >> 32, bounds & _LOW, [])
        if replay.first < replay.last:  # a graph with NCCL in it
            replays.append(replay)
            positions.append(at)
    position = np.array(positions, np.int64)
    segment = np.where(position >= 0, segments.of(position), PUBLISHED)
    for index, replay in enumerate(state.replays):
        segment[index] = 0 if replay.step == state.open.number else PUBLISHED
    of, complete = np.full(len(called), _NONE, np.int64), np.zeros(len(replays), bool)
    bounds_of = np.array([(replay.first, replay.last) for replay in replays], np.int64).reshape(-1, 2)
    for first, last in np.unique(bounds_of, axis=0).tolist():
        among = np.flatnonzero((bounds_of == (first, last)).all(1))
        inside = np.flatnonzero((captured > first) & (captured <= last))
        _match(captured, inside, among, replays, of)
        count = np.bincount(of[of >= 0], minlength=len(replays))[among]
        count += [len(replays[index].seen) for index in among.tolist()]
        later = np.append(np.cumsum(count[::-1])[::-1][1:], 0)  # the next one has begun
        complete[among] = (count >= last - first) | (later > 0)
    return ReplayedOperations(replays, position, segment, of, complete)


def _match(captured: Array, inside: Array, among: Array, replays: list[Replay], of: Array) -> None:
    """Set `of` for operations `inside` a range to the launches `among` all, the k-th of a number to the k-th launch."""
    order = inside[np.argsort(captured[inside], kind="stable")]
    number = captured[order]
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1])[: len(number)])
    run = np.cumsum(np.append(0, number[1:] != number[:-1]))[: len(number)]
    nth = np.arange(len(number)) - first[run]
    seen = [value for index in among.tolist() for value in replays[index].seen]
    if seen:
        known, times = np.unique(np.array(seen, np.int64), return_counts=True)
        at = np.minimum(np.searchsorted(known, number), len(known) - 1)
        nth += np.where(known[at] == number, times[at], 0)
    matched = nth < len(among)
    of[order[matched]] = among[nth[matched]]
