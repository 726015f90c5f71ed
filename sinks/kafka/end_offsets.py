"""Request the partitions' ends without waiting: fetches report them only while partitions are not paused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # stubs do not export them

REQUEST_INTERVAL_S = 5.0
TIMEOUT_S = 15.0
Place = tuple[str, int]


class EndOffsets:
    """Keeps the end of each partition as of the last answer.

    Used by the sink's thread only; nothing blocks. `known`: (topic, partition) -> offset of the next record there.
    """

    def __init__(self, admin: AdminClient, consumer: Consumer) -> None:
        self.known: dict[Place, int] = {}
        self._admin, self._consumer = admin, consumer
        self._requested_at = float("-inf")
        self._requests: dict[Place, Future[Any]] = {}

    def request(self, places: Collection[Place], now: float) -> None:
        """Request the ends again, at most every REQUEST_INTERVAL_S and once the last request is settled.

        `now`: monotonic, s.
        """
        if places and not self._requests and now - self._requested_at >= REQUEST_INTERVAL_S:
            self._requested_at = now
            wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S)
            self._requests = {(part.topic, part.partition): future for part, future in answers.items()}

    def take(self) -> bool:
        """Store the answers that arrived; return True if there was one."""
        came = [(place, future) for place, future in self._requests.items() if future.done()]
        answered = False
        for place, future in came:
            del self._requests[place]
            try:
                self.known[place] = int(future.result().offset)
                answered = True
            except KafkaException:  # no broker answers; the next request may succeed
                continue
        return answered

    def lags(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        """Return the records between each of `positions` (the next offset to take in) and the known end."""
        behind = {}
        for place, position in positions.items():
            high = self.known.get(place, 0)
            try:
                _, fetched = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                high = max(high, fetched)
            except KafkaException:  # not fetched from yet
                pass
            behind[place] = max(0, high - position)
        return behind
