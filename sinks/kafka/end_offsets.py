"""Ends of partitions, asked without waiting for the answer: fetches bring them only while partitions are not paused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # stubs do not export them

ASK_S = 5.0
TIMEOUT_S = 15.0
Place = tuple[str, int]


class Ends:
    """`known`: (topic, partition) -> offset of the next record there, as of the last answer."""

    def __init__(self, admin: AdminClient, consumer: Consumer) -> None:
        self.known: dict[Place, int] = {}
        self._admin, self._consumer = admin, consumer
        self._asked = float("-inf")
        self._waiting: dict[Place, Future[Any]] = {}

    def ask(self, places: Collection[Place], now: float) -> None:
        """Ask anew, at most every ASK_S and once the last question is settled. `now`: monotonic, s."""
        if places and not self._waiting and now - self._asked >= ASK_S:
            self._asked = now
            wanted = {TopicPartition(*place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_S)
            self._waiting = {(part.topic, part.partition): future for part, future in answers.items()}

    def take(self) -> bool:
        """Take the answers that came; whether there was one."""
        came = [(place, future) for place, future in self._waiting.items() if future.done()]
        answered = False
        for place, future in came:
            del self._waiting[place]
            try:
                self.known[place] = int(future.result().offset)
                answered = True
            except KafkaException:  # nobody there; the next question may be answered
                continue
        return answered

    def lag(self, positions: Mapping[Place, int]) -> int:
        """Records between `positions` (the next offset to take in) and the ends, as of the last answer or fetches."""
        behind = 0
        for place, position in positions.items():
            high = self.known.get(place, 0)
            try:
                _, fetched = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
                high = max(high, fetched)
            except KafkaException:  # not fetched from yet
                pass
            behind += max(0, high - position)
        return behind
