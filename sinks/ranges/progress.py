"""Find partitions that stand still although Kafka has more of them."""

from __future__ import annotations

from collections.abc import Mapping

#: Time without a record, with lag, after which the sink is not ready; s.
STALLED_S = 60.0
Place = tuple[str, int]


class Progress:
    """Remembers since when each partition with lag stands at its offset."""

    def __init__(self) -> None:
        self._since: dict[Place, tuple[int, float]] = {}

    def stalled(self, behind: Mapping[Place, int], now: float) -> list[Place]:
        """Return the partitions that have not moved for STALLED_S, in order.

        `behind`: next offset of each partition with lag, about once a second. `now`: monotonic, s.
        """
        previous, self._since = self._since, {}
        for place, offset in behind.items():
            at, since = previous.get(place, (-1, now))
            self._since[place] = (offset, since if at == offset else now)
        return sorted(place for place, (_, since) in self._since.items() if now - since >= STALLED_S)
