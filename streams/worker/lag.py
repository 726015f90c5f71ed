"""Measure how far a worker is behind: silence means something only once everything is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faust.exceptions import ConsumerNotStarted


class Lag:
    """Measures the records that this worker has not applied, over all partitions it has of `topics`.

    Ends of partitions are those that the last fetch reported: half a second old at most (fetch.py). Another
    request to the broker would queue behind a fetch that waits for data. `count`: records applied.
    """

    def __init__(self, app: Any, topics: Iterable[str]) -> None:
        self._app, self._topics = app, frozenset(topics)
        self._done: dict[Any, int] = {}
        self._first: dict[Any, int] = {}
        self._moved: dict[Any, tuple[int | None, float]] = {}  # partition -> (position, since when)
        self.count = 0

    def handled(self, tp: Any, offset: int, records: int = 1) -> None:
        """Record that records were applied; `offset`: of the last one."""
        self._done[tp] = offset + 1
        self.count += records

    def reset(self) -> None:
        """Drop all positions, after partitions moved."""
        self._done.clear()
        self._first.clear()
        self._moved.clear()

    async def prepare(self) -> None:
        """Request once where partitions without a committed offset begin."""
        new = [tp for tp in self._input_partitions() if self._next(tp) is None]
        if new:
            offsets = await self._app.consumer.earliest_offsets(*new)
            self._first.update({tp: offset for tp, offset in offsets.items() if offset is not None})

    def positions(self) -> dict[Any, int | None]:
        """Return partition -> offset of the first record not applied yet; None while unknown."""
        return {tp: self._next(tp) for tp in self._input_partitions()}

    def records(self) -> int | None:
        """Return the number of records not applied yet; None while not all ends are known."""
        behind = 0
        for tp, position in self.positions().items():
            end = self._app.consumer.highwater(tp)
            if end is None or end < 0 or position is None:
                return None
            behind += max(0, end - position)
        return behind

    def standstill(self, now: float) -> tuple[float, str]:
        """Return for how long a partition with records has stood still, in s, and which: the longest.

        Call it every second; `now`: monotonic.
        """
        longest = 0.0, ""
        for tp, position in self.positions().items():
            is_done = position is None or (self._app.consumer.highwater(tp) or 0) <= position
            before, since = self._moved.get(tp, (None, now))
            if is_done or before != position:
                since = now
            self._moved[tp] = position, since
            longest = max(longest, (now - since, f"{tp.topic}-{tp.partition} at offset {position}"))
        return longest

    def _input_partitions(self) -> list[Any]:
        try:
            assigned = self._app.consumer.assignment()
        except ConsumerNotStarted:
            return []
        return [tp for tp in assigned if tp.topic in self._topics]

    def _next(self, tp: Any) -> int | None:
        done = self._done.get(tp)
        if done is not None:
            return done
        committed: int | None = self._app.consumer._committed_offset.get(tp)
        return committed if committed is not None else self._first.get(tp)
