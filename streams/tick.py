"""Ticks: a record per partition and second, by which silence becomes a message; and the lag that silence must rule out.

Timers may not touch tables or emit (docs/design/streams.md). So the timer only sends ticks, and the tick's arrival,
in order with everything else of the partition's worker, closes what has been silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TICK_S = 1.0
#: Longer without a tick is an outage; s.
GAP_S = 3.0


class Pulse:
    """Whether silence is the producers' own. While Kafka is away nobody is heard, and ticks come back before producers
    do: after a gap in the ticks, and at first, silence counts anew. `idle_ns`: how long silence must last to mean
    something."""

    def __init__(self, idle_ns: int) -> None:
        self._idle_ns, self._last_ns, self._since_ns = idle_ns, 0, 0

    def due(self, now_ns: int) -> bool:
        """False for ticks that had queued up behind each other."""
        return now_ns - self._last_ns >= TICK_S * 5e8

    def beat(self, now_ns: int) -> bool:
        """A tick has come; whether they have been coming for `idle_ns` without a gap."""
        if now_ns - self._last_ns > GAP_S * 1e9:
            self._since_ns = now_ns
        self._last_ns = now_ns
        return now_ns - self._since_ns >= self._idle_ns


class Lag:
    """How far this worker is behind, over all partitions it has of `topics`.

    Ends of partitions are those that came with the last fetch. Asking the broker would queue behind a fetch that waits
    up to 1.5 s for data; a new record ends that wait, so what fetches say is as fresh.
    """

    def __init__(self, app: Any, topics: Iterable[str]) -> None:
        self._app, self._topics = app, frozenset(topics)
        self._done: dict[Any, int] = {}
        self._first: dict[Any, int] = {}
        self.count = 0

    def handled(self, tp: Any, offset: int) -> None:
        """A record has been applied."""
        self._done[tp] = offset + 1
        self.count += 1

    def reset(self) -> None:
        """Partitions have moved."""
        self._done.clear()
        self._first.clear()

    async def prepare(self) -> None:
        """Ask once where partitions without a committed offset begin."""
        new = [tp for tp in self._mine() if self._next(tp) is None]
        if new:
            offsets = await self._app.consumer.earliest_offsets(*new)
            self._first.update({tp: offset for tp, offset in offsets.items() if offset is not None})

    def positions(self) -> dict[Any, int | None]:
        """Partition -> offset of the first record not applied yet; None = not known yet."""
        return {tp: self._next(tp) for tp in self._mine()}

    def records(self) -> int | None:
        """Records not applied yet; None while not all ends are known."""
        behind = 0
        for tp, position in self.positions().items():
            end = self._app.consumer.highwater(tp)
            if end is None or end < 0 or position is None:
                return None
            behind += max(0, end - position)
        return behind

    def _mine(self) -> list[Any]:
        return [tp for tp in self._app.consumer.assignment() if tp.topic in self._topics]

    def _next(self, tp: Any) -> int | None:
        done = self._done.get(tp)
        if done is not None:
            return done
        committed: int | None = self._app.consumer._committed_offset.get(tp)
        return committed if committed is not None else self._first.get(tp)
