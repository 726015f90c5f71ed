"""Ticks: a record per partition and second, by which silence becomes a message; and the lag that silence must rule out.

Timers may not touch tables or emit (docs/design/streams.md). So the timer only sends ticks, and the tick's arrival,
in order with everything else of the partition's worker, closes what has been silent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

TICK_S = 1.0
#: How old an answer about lag may be. Ticks of all partitions share it.
LAG_CACHE_S = 0.5


class Lag:
    """How far this worker is behind, over all partitions it has of `topics`."""

    def __init__(self, app: Any, topics: Iterable[str]) -> None:
        self._app, self._topics = app, frozenset(topics)
        self._done: dict[Any, int] = {}
        self._asked = -1e9
        self._answer: int | None = None

    def handled(self, tp: Any, offset: int) -> None:
        """A record has been applied."""
        self._done[tp] = offset + 1

    def reset(self) -> None:
        """Partitions have moved."""
        self._done.clear()
        self._asked = -1e9

    async def records(self) -> int | None:
        """Records not applied yet; None when the broker does not say. At most LAG_CACHE_S old when it was 0."""
        if time.monotonic() - self._asked > LAG_CACHE_S:
            self._answer = await self._ask()
            self._asked = time.monotonic()
        return self._answer

    async def _ask(self) -> int | None:
        consumer = self._app.consumer
        mine = [tp for tp in consumer.assignment() if tp.topic in self._topics]
        try:
            ends = await consumer.highwaters(*mine)
        except Exception:  # no answer is not "no lag"
            return None
        behind = 0
        for tp in mine:
            end = ends.get(tp)
            done = self._done.get(tp)
            if done is None:  # nothing applied since the partition came: where reading would start
                done = await consumer.position(tp)
            if end is None or done is None:
                return None
            behind += max(0, end - done)
        return behind
