"""Read Kafka's side of the audit: the offsets that exist and the offsets that the sinks committed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import stamina
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.acls import acl_error, describe_topics, missing_group_acls
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import (
    BrokerUnreachable,
    ConnectionProbe,
    KafkaAccessDenied,
    silence_librdkafka,
    to_error,
)
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.record_times import Place, reader, record_times
from drumline.sinks.ranges.disposition import published_ms
from drumline.sinks.ranges.intent import BadIntent, read_metadata
from drumline.sinks.ranges.stored_tail import kafka_topic_id

REQUEST_S = 15.0


def _passing(error: Exception) -> bool:
    """Return True for errors that pass: a coordinator that moves or loads, a broker that just starts."""
    if isinstance(error, BrokerUnreachable):
        return not isinstance(error, KafkaAccessDenied)
    return isinstance(error, KafkaException) and bool(
        error.args[0].retriable() or error.args[0].code() in (KafkaError.NOT_COORDINATOR, KafkaError._TRANSPORT)
    )


class KafkaUnreachable(RuntimeError):
    """Reports that Kafka gave no usable answer, so the audit cannot run."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Holds the offsets of one partition as Kafka has them.

    `low`, `high`: offsets low..high-1 are in Kafka. `committed`: records below it are stored. `pending`: a range has a
    committed intent. `commit_offset`: the committed offset itself, which Kafka may have removed since; -1 = none.
    `topic_id`: the sink's name of the log (ranges/stored_tail.py).
    """

    topic: str
    topic_id: str
    partition: int
    low: int
    high: int
    committed: int
    pending: bool
    commit_offset: int = -1

    @property
    def waiting(self) -> int:
        """Return the number of records that are not stored yet."""
        return max(0, self.high - max(self.committed, self.low))


class KafkaFacts:
    """Reads offsets and commits from Kafka; joins no group and commits nothing.

    Created for one audit run; the caller closes it. All methods block for up to the request timeout.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings, self._contact = settings, ConnectionProbe(settings)
        self._admin = AdminClient(self._contact.silence(client_config(settings, "drumline-audit")))
        self._consumer = Consumer(
            {
                **silence_librdkafka(client_config(settings, "drumline-audit")),
                "group.id": settings.sink.group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def partitions(self, topics: Iterable[str]) -> list[PartitionFacts]:
        """Return the facts of all partitions of the topics that exist.

        Raises KafkaUnreachable, also if none of the topics exists: then no gap could be found.
        """
        names = dict.fromkeys(topics, ("READ",))
        try:
            self._contact.metadata(self._admin)
            for attempt in stamina.retry_context(on=_passing, attempts=6, wait_initial=0.2, timeout=30):
                with attempt:
                    existing, lacks = describe_topics(self._admin, self._settings, names)
                    # Checked before `committed`, which would block until its timeout without this ACL.
                    lacks += missing_group_acls(self._admin, self._settings.sink.group, ("DESCRIBE",))
                    if lacks:
                        raise acl_error(self._settings, lacks)
                    if names and not existing:
                        raise KafkaUnreachable(
                            f"Kafka at {self._settings.bootstrap} has none of drumline's topics: is it the right one "
                            "(DRUMLINE_KAFKA__BOOTSTRAP)? `drumline topics apply` creates them"
                        )
                    return [facts for topic in sorted(existing) for facts in self._topic(topic, existing[topic])]
            return []
        except BrokerUnreachable as error:
            raise KafkaUnreachable(str(error)) from None
        except KafkaException as error:
            right = f"Describe on group {self._settings.sink.group}"
            raise KafkaUnreachable(str(to_error(self._settings, error, right))) from None

    def _topic(self, topic: str, answer: Any) -> list[PartitionFacts]:
        wanted = [TopicPartition(topic, info.id) for info in answer.partitions]
        facts = []
        for committed in self._consumer.committed(wanted, timeout=REQUEST_S):
            place: Any = committed
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, place.partition), timeout=REQUEST_S, cached=False
            )
            offset, pending, topic_id = place.offset, False, str(answer.topic_id)
            try:
                of_topic, intent = read_metadata(place.metadata, place.partition, max(offset, 0))
                pending = intent is not None
                if of_topic and kafka_topic_id(of_topic) != topic_id:
                    offset = low
                elif of_topic:
                    topic_id = of_topic
            except BadIntent:
                offset = low
            facts.append(
                PartitionFacts(topic, topic_id, place.partition, low, high, max(offset, low), pending, max(offset, -1))
            )
        return facts

    def times(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Return when Kafka received the records at these offsets; see `record_times`. Raises KafkaUnreachable."""
        try:
            with closing(reader(self._settings, "drumline-audit")) as consumer:
                return record_times(consumer, offsets) if offsets else {}
        except TransientKafkaError as error:
            raise KafkaUnreachable(str(error)) from None

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the end of the partition's log. Raises KafkaUnreachable."""
        try:
            place = TopicPartition(topic, partition)
            low, end = self._consumer.get_watermark_offsets(place, timeout=REQUEST_S, cached=False)
            return int(low), int(end)
        except KafkaException as error:
            raise KafkaUnreachable(str(to_error(self._settings, error))) from None

    def existing(self, facts: PartitionFacts, first: int, last: int, since_ms: int = 0, timeout_s: float = 30.0) -> int:
        """Return the number of records at first..last that Kafka got from `since_ms` on; ms since the epoch.

        Compaction and transactions leave offsets without a record. Those of a batch that cannot be unpacked count.
        Raises KafkaUnreachable.
        """
        self._consumer.assign([TopicPartition(facts.topic, facts.partition, first)])
        count, position, until = 0, first, time.monotonic() + timeout_s
        try:
            while time.monotonic() < until:
                message: Any = self._consumer.poll(0.5)
                if message is None:
                    continue
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        return count
                    if message.error().code() == KafkaError._BAD_COMPRESSION:  # all of them are in it, or behind it
                        return count + last - position + 1
                    raise KafkaUnreachable(str(message.error()))
                position = message.offset() + 1
                if message.offset() > last:
                    return count
                count += int(published_ms(int(message.timestamp()[1])) >= since_ms)
                if message.offset() == last:
                    return count
            raise KafkaUnreachable(f"{facts.topic} partition {facts.partition} could not be read in {timeout_s:.0f} s")
        finally:
            self._consumer.unassign()
