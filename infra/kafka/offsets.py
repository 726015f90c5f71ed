"""End offsets of topics and committed offsets of groups, without joining a group or committing."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # stubs do not export them

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import admin_config, client_config
from drumline.infra.kafka.connect import silence_librdkafka

#: Errors of stale partition metadata, after a broker's restart or of a new topic; listing the topics refreshes it.
STALE = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._NOENT,
    }
)
#: Delays before the queries after such an error; s. A new topic's leader is known within a second, or later where the
#: broker's host is busy.
STALE_DELAYS_S = (0.0, 0.3, 1.0, 2.0, 4.0)


class Offsets:
    """Queries offsets; a place is "topic:partition". Close it after use; for one thread.

    Every call queries the broker, blocks for up to `timeout_s`, and then raises KafkaException.
    """

    def __init__(self, settings: Settings, timeout_s: float = 10.0) -> None:
        self._config = silence_librdkafka(client_config(settings, "drumline-offsets"))
        self._admin = AdminClient(silence_librdkafka(admin_config(settings, "drumline-offsets")))
        self._consumers: dict[str, Consumer] = {}
        self._timeout_s = timeout_s

    def places(self, topics: Collection[str]) -> list[str]:
        """Return all partitions of those of the topics that exist."""
        listed = self._admin.list_topics(timeout=self._timeout_s).topics
        return [
            f"{topic}:{number}" for topic in sorted(topics) if topic in listed for number in listed[topic].partitions
        ]

    def ends(self, places: Iterable[str]) -> dict[str, int]:
        """Return the end offset of each place: that of its next record."""
        queried = {_partition(place): OffsetSpec.latest() for place in places}  # type: ignore[no-untyped-call]
        if not queried:
            return {}
        for delay_s in STALE_DELAYS_S:
            try:
                return self._latest(queried)
            except KafkaException as error:
                if error.args[0].code() not in STALE:
                    raise
            time.sleep(delay_s)
            self._admin.list_topics(timeout=self._timeout_s)
        return self._latest(queried)

    def _latest(self, queried: dict[TopicPartition, OffsetSpec]) -> dict[str, int]:
        answers = self._admin.list_offsets(queried, request_timeout=self._timeout_s)
        return {f"{tp.topic}:{tp.partition}": future.result().offset for tp, future in answers.items()}

    def committed(self, group: str, places: Iterable[str]) -> dict[str, tuple[int, str]]:
        """Return (offset, metadata) that the group has committed, for the places where it has.

        Raises:
            KafkaException: Kafka does not answer, or denies it.
        """
        if group not in self._consumers:  # the admin client's call for this crashes when the coordinator is down
            config = {**self._config, "group.id": group, "enable.auto.commit": False}
            self._consumers[group] = Consumer(config)
        queried = [_partition(place) for place in places]
        answers: list[Any] = self._consumers[group].committed(queried, timeout=self._timeout_s) if queried else []
        for tp in answers:
            if tp.error is not None:
                raise KafkaException(tp.error)
        return {f"{tp.topic}:{tp.partition}": (tp.offset, tp.metadata or "") for tp in answers if tp.offset >= 0}

    def behind(self, group: str, ends: Mapping[str, int]) -> list[str]:
        """Return the places up to whose ends a group has not committed, sorted."""
        stored = self.committed(group, ends)
        return [place for place, end in sorted(ends.items()) if stored.get(place, (0, ""))[0] < end]

    def members(self, group: str) -> int:
        """Return the number of running members of a group; 0 where there is no such group."""
        [future] = self._admin.describe_consumer_groups([group], request_timeout=self._timeout_s).values()
        try:
            return len(future.result().members)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return 0
            raise

    def close(self) -> None:
        """Close the consumers that read committed offsets."""
        for consumer in self._consumers.values():
            consumer.close()


def _partition(place: str) -> TopicPartition:
    topic, number = place.rsplit(":", 1)
    return TopicPartition(topic, int(number))
