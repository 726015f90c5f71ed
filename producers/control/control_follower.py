"""Follows drumline.control.v1 from its beginning, and verdicts from their end; without a group, without commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import principal
from drumline.producers.control.request_log import ControlLog, name_of
from drumline.producers.control.requests_in_force import RequestsInForce
from drumline.producers.control.verdict_windows import VerdictWindows
from drumline.schemas.codec import Codec
from drumline.schemas.control import WINDOW, BadControl
from drumline.schemas.errors import BadRecord, BadSchema, RegistryUnavailable
from drumline.schemas.topics import Topic

log = structlog.get_logger()

#: Named for ACLs. It is never joined: librdkafka requires a name.
GROUP = "drumline-agent"
#: Time for an answer about the topic, and until the next try without one; s.
METADATA_S, RETRY_S = 2.0, 10.0


def make_consumer(settings: Settings) -> Any:
    """Return a consumer that takes little memory."""
    return Consumer({
        **client_config(settings, "drumline-agent"), "group.id": GROUP, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "allow.auto.create.topics": False, "enable.partition.eof": True,
        "queued.max.messages.kbytes": 1_024, "log_level": 0,
    })  # fmt: skip


class ControlFollower:
    """Keeps `requests` as the topic has them. For one thread.

    `is_complete`: all that was asked before the start has been read; until then a request that was cleared may be
    there. `problem`: reason why nothing is followed, or "". `codec`: reads verdicts, None = they ask for nothing.
    `jobs`: returns the names of the jobs that have a process here; verdicts of others are not decoded.
    `verdicts`: what they ask for, WINDOW or PULL -> such jobs; None: windows for `jobs`.
    """

    def __init__(
        self,
        settings: Settings,
        codec: Codec | None = None,
        jobs: Callable[[], Collection[str]] = tuple,
        consumer: Callable[[Settings], Any] = make_consumer,
        clock: Callable[[], float] = time.monotonic,
        verdicts: Mapping[str, Callable[[], Collection[str]]] | None = None,
    ) -> None:
        self._settings, self._clock, self._consumer = settings, clock, consumer(settings)
        self._codec = codec
        wanted = {WINDOW: jobs} if verdicts is None else verdicts
        self._verdict_windows = [(VerdictWindows(kind), of_kind) for kind, of_kind in wanted.items()]
        self._log = ControlLog()
        self._assigned: set[int] = set()
        self._open_ends: set[int] = set()
        self._refresh_at = float("-inf")
        self.requests, self.problem = RequestsInForce(), ""

    @property
    def is_complete(self) -> bool:
        """Return whether each partition was read to its end once."""
        return bool(self._assigned) and not self._open_ends

    def poll(self, seconds: float) -> bool:
        """Take the next record; return whether one came. Blocks for `seconds`, or METADATA_S without the topic."""
        if not self._assigned and self._clock() >= self._refresh_at:
            self._refresh_at = self._clock() + RETRY_S
            self._assign()
        message = self._consumer.poll(seconds)
        if message is None:
            return False
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF and message.topic() == Topic.CONTROL:
                self._open_ends.discard(message.partition())
            return False
        return self._take_verdict(message) if message.topic() == Topic.STRAGGLER else self._take_request(message)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _take_request(self, message: Any) -> bool:
        key, at_ms = name_of(message.key()), int(message.timestamp()[1])
        try:
            control = self._log.read(message.partition(), message.key(), message.value(), at_ms)
        except BadControl as bad:
            log.warning("a request is not followed", topic=str(Topic.CONTROL), key=key[:100], reason=str(bad))
            control = None
        self.requests.take(key, control)
        return True

    def _take_verdict(self, message: Any) -> bool:
        job = (message.key() or b"").decode(errors="replace")
        wanted = [windows for windows, jobs in self._verdict_windows if job in jobs()]
        if self._codec is None or not wanted or message.value() is None:
            return False
        at_ms = int(message.timestamp()[1])
        try:
            batch = self._codec.decode(
                str(message.topic()), message.value(), at_ms, key=message.key(), headers=message.headers() or ()
            )
        except (BadRecord, BadSchema, RegistryUnavailable) as error:
            log.warning("a verdict asks for nothing", reason=str(error))
            return False
        requests = [window for windows in wanted if (window := windows.window(batch, at_ms / 1e3))]
        for window in requests:
            log.info("a verdict asks for rows", kind=window.kind, job=job, name=window.key, ranks=window.ranks)
            self.requests.take((job, window.run, window.key), window)
        return bool(requests)

    def _listed(self, topic: Topic) -> Any:
        return self._consumer.list_topics(str(topic), timeout=METADATA_S).topics[str(topic)]

    def _assign(self) -> None:
        problem = ""
        try:
            listed = self._listed(Topic.CONTROL)
            of_verdicts = None if self._codec is None else self._listed(Topic.STRAGGLER)
        except KafkaException as error:
            problem = f"Kafka does not answer: {error.args[0].str()}"
        else:
            if listed.error is None:
                self._assigned = set(listed.partitions)
                self._open_ends = set(listed.partitions)
                places = [TopicPartition(str(Topic.CONTROL), n, OFFSET_BEGINNING) for n in sorted(self._assigned)]
                if of_verdicts is not None:  # a topic that comes later has as many partitions as most
                    numbers = self._assigned if of_verdicts.error is not None else of_verdicts.partitions
                    places += [TopicPartition(str(Topic.STRAGGLER), n, OFFSET_END) for n in sorted(numbers)]
                self._consumer.assign(places)
            elif listed.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                problem = (
                    f"{principal(self._settings)} lacks ACLs: Read on topic {Topic.CONTROL} and group {GROUP} "
                    "(docs/guide/security.md)"
                )
            else:
                problem = f"no topic {Topic.CONTROL}: `drumline topics apply` creates it"
        if problem and problem != self.problem:
            log.warning("drumline policy and capture do not reach this host", problem=problem)
        self.problem = problem
