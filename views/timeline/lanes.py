"""Distribution of spans over lanes, because the slices of one track of a trace must be nested.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """Something that lasts, in ns. notes: what a click on it shows. flow: spans of one number are joined; 0 = none."""

    begin: int
    end: int
    name: str
    notes: tuple[tuple[str, int | float | str], ...] = ()
    flow: int = 0


#: An edge of a span in its lane: the lane's number, the time, and the span; None at its end.
Edge = tuple[int, int, Span | None]


@dataclass(slots=True)
class _TrackLane:
    open: list[int] = field(default_factory=list)

    def close_until(self, time: int) -> Iterator[int]:
        while self.open and self.open[-1] <= time:
            yield self.open.pop()


def edges(spans: Iterable[Span], *, nests: bool) -> Iterator[Edge]:
    """Yield begins and ends, in the order of time in each lane.

    nests: a span lies in the lane of one that encloses it; otherwise in the first lane that is free.
    """
    lanes: list[_TrackLane] = []
    for span in sorted(spans, key=lambda span: (span.begin, -span.end)):
        end = max(span.begin, span.end)
        for number in range(len(lanes) + 1):
            if number == len(lanes):
                lanes.append(_TrackLane())
            lane = lanes[number]
            yield from ((number, closed, None) for closed in lane.close_until(span.begin))
            if not lane.open or (nests and lane.open[-1] >= end):
                break
        lane.open.append(end)
        yield number, span.begin, span
    for number, lane in enumerate(lanes):
        yield from ((number, closed, None) for closed in reversed(lane.open))
