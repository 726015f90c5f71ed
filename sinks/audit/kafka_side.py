"""What Kafka has and what was committed: the side of the audit that ClickHouse cannot know."""

from __future__ import annotations

import time
from collections.abc import Iterable
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
from drumline.sinks.ranges.intent import BadIntent, read_metadata

REQUEST_S = 15.0


def _passing(error: Exception) -> bool:
    """A coordinator that moves or loads, a broker that just starts."""
    if isinstance(error, BrokerUnreachable):
        return not isinstance(error, KafkaAccessDenied)
    return isinstance(error, KafkaException) and bool(
        error.args[0].retriable() or error.args[0].code() in (KafkaError.NOT_COORDINATOR, KafkaError._TRANSPORT)
    )


class KafkaUnreachable(RuntimeError):
    """The audit cannot run."""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """Offsets low..high-1 are in Kafka; those below `committed` were said to be stored. `pending`: a range is
    announced. `said`: the committed offset itself, which Kafka may have removed since; -1 = none."""

    topic: str
    topic_id: str
    partition: int
    low: int
    high: int
    committed: int
    pending: bool
    said: int = -1

    @property
    def waiting(self) -> int:
        """Records not stored yet."""
        return max(0, self.high - max(self.committed, self.low))


class KafkaFacts:
    """Reads only: joins no group, commits nothing."""

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
        self._consumer.close()

    def partitions(self, topics: Iterable[str]) -> list[PartitionFacts]:
        """All partitions of those topics that exist. Raises KafkaUnreachable, also if none does: nothing could be
        found missing there."""
        names = dict.fromkeys(topics, ("READ",))
        try:
            self._contact.metadata(self._admin)
            for attempt in stamina.retry_context(on=_passing, attempts=6, wait_initial=0.2, timeout=30):
                with attempt:
                    found, lacks = describe_topics(self._admin, self._settings, names)
                    # Asked here, for want of it `committed` would wait until its time is over.
                    lacks += missing_group_acls(self._admin, self._settings.sink.group, ("DESCRIBE",))
                    if lacks:
                        raise acl_error(self._settings, lacks)
                    if names and not found:
                        raise KafkaUnreachable(
                            f"Kafka at {self._settings.bootstrap} has none of our topics: is it the right one "
                            "(DRUMLINE_KAFKA__BOOTSTRAP)? `drumline topics apply` creates them"
                        )
                    return [facts for topic in sorted(found) for facts in self._topic(topic, found[topic])]
            return []
        except BrokerUnreachable as error:
            raise KafkaUnreachable(str(error)) from None
        except KafkaException as error:
            right = f"Describe on group {self._settings.sink.group}"
            raise KafkaUnreachable(str(to_error(self._settings, error, right))) from None

    def _topic(self, topic: str, answer: Any) -> list[PartitionFacts]:
        wanted = [TopicPartition(topic, info.id) for info in answer.partitions]
        found = []
        for committed in self._consumer.committed(wanted, timeout=REQUEST_S):
            place: Any = committed
            low, high = self._consumer.get_watermark_offsets(
                TopicPartition(topic, place.partition), timeout=REQUEST_S, cached=False
            )
            offset, pending = place.offset, False
            try:
                of_topic, intent = read_metadata(place.metadata, place.partition, max(offset, 0))
                pending = intent is not None
                if of_topic not in ("", str(answer.topic_id)):
                    offset = low
            except BadIntent:
                offset = low
            found.append(
                PartitionFacts(
                    topic, str(answer.topic_id), place.partition, low, high, max(offset, low), pending, max(offset, -1)
                )
            )
        return found

    def existing(self, facts: PartitionFacts, first: int, last: int, timeout_s: float = 30.0) -> int:
        """How many records Kafka holds at first..last: compaction and transactions leave offsets without one."""
        self._consumer.assign([TopicPartition(facts.topic, facts.partition, first)])
        count, until = 0, time.monotonic() + timeout_s
        try:
            while time.monotonic() < until:
                message: Any = self._consumer.poll(0.5)
                if message is None:
                    continue
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:
                        return count
                    raise KafkaUnreachable(str(message.error()))
                if message.offset() > last:
                    return count
                count += 1
                if message.offset() == last:
                    return count
            raise KafkaUnreachable(f"{facts.topic} partition {facts.partition} could not be read in {timeout_s:.0f} s")
        finally:
            self._consumer.unassign()
