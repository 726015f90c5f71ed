"""Reading of verdicts from Kafka as they come: from the end, without a group, without commits.

A verdict that was missed asks for nothing: stacks are sampled while the rank is late, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import principal
from drumline.producers.stacks.verdicts import READERS, Verdict
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord, BadSchema, RegistryUnavailable

log = structlog.get_logger()

#: Named for ACLs. It is never joined: librdkafka requires a name.
GROUP = "drumline-agent"
#: Interval at which new topics and partitions are searched; s.
REFRESH_S = 60.0
#: Time for an answer about a topic, and until the next try without one; s.
METADATA_S, RETRY_S = 2.0, 10.0


def make_consumer(settings: Settings) -> Any:
    """Return a consumer of verdicts that takes little memory."""
    return Consumer({
        **client_config(settings, "drumline-agent"), "group.id": GROUP, "enable.auto.commit": False,
        "auto.offset.reset": "latest", "allow.auto.create.topics": False, "queued.max.messages.kbytes": 4_096,
        "log_level": 0,
    })  # fmt: skip


class VerdictFollower:
    """Returns verdicts of jobs of this host. For one thread.

    `jobs`: names of the jobs that have a process here; the records of others are not decoded. `problem`: reason why
    nothing is read, or "".
    """

    def __init__(
        self,
        settings: Settings,
        codec: Codec,
        jobs: Callable[[], Collection[str]],
        consumer: Callable[[Settings], Any] = make_consumer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._codec, self._jobs, self._clock = settings, codec, jobs, clock
        self._make, self._consumer = consumer, consumer(settings)
        self._answered_at = clock()
        self._assigned: set[tuple[str, int]] = set()
        self._refresh_at = float("-inf")
        self.problem = ""

    def poll(self, seconds: float) -> Verdict | None:
        """Return the next verdict that asks for something, None if none came in this time. Blocks for METADATA_S."""
        if self._clock() >= self._refresh_at:
            self._refresh()
        message = self._consumer.poll(seconds)
        if message is None or message.error() is not None:
            return None
        job = (message.key() or b"").decode(errors="replace")
        if job not in self._jobs() or message.value() is None:
            return None
        topic, at_ms = str(message.topic()), int(message.timestamp()[1])
        try:
            batch = self._codec.decode(
                topic, message.value(), at_ms, key=message.key(), headers=message.headers() or ()
            )
        except (BadRecord, BadSchema, RegistryUnavailable) as error:
            self._report(f"a record of {topic} is not read: {error}")
            return None
        return READERS[topic](batch, at_ms / 1e3)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _refresh(self) -> None:
        """Assign the partitions that are there, new ones from their end."""
        self._refresh_at = self._clock() + REFRESH_S
        partitions, problem = set(self._assigned), ""
        for topic in READERS:
            try:
                listed = self._consumer.list_topics(topic, timeout=METADATA_S).topics[topic]
            except KafkaException as error:
                self._refresh_at = self._clock() + RETRY_S
                self._replace_silent()
                problem = f"Kafka does not answer: {error.args[0].str()}"
                break
            self._answered_at = self._clock()
            if listed.error is not None:
                if listed.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    user = principal(self._settings)
                    problem = f"{user} lacks ACLs: Read on topic {topic} and group {GROUP} (docs/guide/security.md)"
                continue
            partitions |= {(topic, number) for number in listed.partitions}
        if partitions - self._assigned:
            at = {(p.topic, p.partition): p.offset for p in self._positions()}
            places = [
                TopicPartition(*place, at[place] if at.get(place, -1) >= 0 else OFFSET_END) for place in partitions
            ]
            self._consumer.assign(places)
            self._assigned = partitions
        self._report(f"no stacks are sampled: {problem}" if problem else "")

    def _replace_silent(self) -> None:
        """Replace a client that had no answer for long: it may have lost all addresses (lost_brokers.py)."""
        if self._clock() - self._answered_at > REFRESH_S:
            self._consumer.close()
            self._consumer, self._assigned, self._answered_at = self._make(self._settings), set(), self._clock()

    def _positions(self) -> list[TopicPartition]:
        if not self._assigned:
            return []
        return list(self._consumer.position([TopicPartition(*place) for place in self._assigned]))

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("stacks", problem=problem)
        self.problem = problem
