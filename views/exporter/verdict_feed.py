"""Reads verdicts, standstills, processes and lost GPUs from Kafka, without a group and without commits.

Each start reads what counts now from the log again, so there is nothing to store: verdicts as far back as a run stays
live, standstills for a day, processes for as long as verdicts are kept.
"""

from __future__ import annotations

import time
from typing import Any

import structlog
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import principal
from drumline.infra.telemetry.metrics import EXPORTER_LEFT, EXPORTER_RECORDS
from drumline.schemas.codec import Codec, Received
from drumline.schemas.epochs import is_ahead, is_fenced, read_epoch
from drumline.schemas.errors import BadRecord, BadSchema, RegistryUnavailable
from drumline.schemas.record_table import RecordTable
from drumline.schemas.topics import DAY_MS, DERIVED_TOPICS, Topic
from drumline.views.exporter.live_runs import LiveRuns
from drumline.views.exporter.options import ExporterOptions
from drumline.views.exporter.request_spans import RequestSpan, request_spans
from drumline.views.exporter.run_state import STANDSTILL_NS

log = structlog.get_logger()

#: Named for ACLs. It is never joined: librdkafka requires a name.
GROUP = "drumline-exporter"
#: Time for an answer of the broker; until the next look for new partitions; until the next try without an answer; s.
METADATA_S, REFRESH_S, RETRY_S = 5.0, 60.0, 5.0
#: Age up to which processes are read, which have the pods of ranks: that of the verdicts' retention; ms.
PROCESSES_MS = 30 * DAY_MS
Place = tuple[str, int]


def make_consumer(settings: Settings) -> Any:
    """Return a consumer that joins no group."""
    return Consumer({
        **client_config(settings, "drumline-exporter"), "group.id": GROUP, "enable.auto.commit": False,
        "auto.offset.reset": "latest", "allow.auto.create.topics": False, "enable.partition.eof": True,
        "queued.max.messages.kbytes": 16_384, "isolation.level": "read_committed", "log_level": 0,
    })  # fmt: skip


def topics_of(options: ExporterOptions) -> dict[Topic, int]:
    """Return topic -> age up to which its records are read at the start, in ms."""
    expire_ms, standstill_ms = int(options.expire_s * 1000), STANDSTILL_NS // 1_000_000
    ages = {Topic.STRAGGLER: expire_ms, Topic.HANG: standstill_ms, Topic.PROCESS: PROCESSES_MS}
    ages |= {Topic.DEVICE: 0} if options.has_losses else {}
    return ages | ({Topic.REQUEST: 0} if options.otlp and options.has_spans else {})


class VerdictFeed:
    """Brings a fleet up to date. For one thread.

    `problem`: reason why nothing is read, or "". `is_complete`: each partition was read to its end once, so that what
    the fleet states is no older state of a log that goes on.
    """

    def __init__(
        self, settings: Settings, options: ExporterOptions, codec: Codec, live: LiveRuns, now_s: float, clock_s: float
    ) -> None:
        self._settings, self._codec, self._live = settings, codec, live
        self._back_ms = topics_of(options)
        self._consumer = make_consumer(settings)
        self._started_ms = int(now_s * 1000)
        self._assigned: set[Place] = set()
        self._open_ends: set[Place] = set()
        self._epochs: dict[str, int] = {}
        self._refresh_at, self._answered_at = clock_s, clock_s
        self._spans: list[RequestSpan] = []
        self.problem = "not connected yet"

    @property
    def is_complete(self) -> bool:
        """Return whether each partition was read to its end once."""
        return bool(self._assigned) and not self._open_ends

    def poll(self, seconds: float) -> bool:
        """Take the next record; return whether one came. Blocks for `seconds`, longer while Kafka does not answer."""
        if (now_s := time.monotonic()) >= self._refresh_at:
            self._refresh(now_s)
        message = self._consumer.poll(seconds)
        if message is None:
            return False
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._open_ends.discard((str(message.topic()), int(message.partition())))
            return False
        self._take(message)
        return True

    def new_spans(self) -> list[RequestSpan]:
        """Return the spans of requests since the last call."""
        spans, self._spans = self._spans, []
        return spans

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()

    def _take(self, message: Any) -> None:
        topic = str(message.topic())
        EXPORTER_RECORDS.labels(topic).inc()
        if message.value() is None:  # a process that somebody removed from the log
            return
        epoch, source = read_epoch(message.headers())
        is_credible = topic in DERIVED_TOPICS and not is_ahead(epoch, int(message.timestamp()[1]))
        if is_credible and is_fenced(self._epochs, epoch, source):
            EXPORTER_LEFT.labels(topic, "fenced").inc()
            return
        received = Received(message.value(), int(message.timestamp()[1]), message.key(), message.headers())
        try:
            changed = self._apply(topic, received)
        except (BadRecord, BadSchema, RegistryUnavailable) as error:
            EXPORTER_LEFT.labels(topic, "unreadable").inc()
            log.warning("a record is not read", topic=topic, reason=str(error))
            return
        if not changed and topic in DERIVED_TOPICS:
            EXPORTER_LEFT.labels(topic, "old").inc()

    def _apply(self, topic: str, received: Received) -> bool:
        record = self._codec.open(topic, received)
        if topic == Topic.DEVICE:
            return self._live.take_samples(self._codec.read(topic, [record]))
        if topic == Topic.REQUEST:
            return self._take_requests(self._codec.read(topic, [record]))
        batches = [self._codec.decode_part(topic, value, record) for value in self._codec.values(topic, record)]
        changed = [self._live.take(batch) for batch in batches]
        return any(changed)

    def _take_requests(self, table: RecordTable) -> bool:
        self._spans += request_spans(table)
        return True

    def _refresh(self, now_s: float) -> None:
        """Assign the partitions that are there; those that come later are read from their beginning."""
        self._refresh_at = now_s + REFRESH_S
        try:
            places, denied = self._listed()
            self._answered_at = now_s
            if new := places - self._assigned:
                self._assign(new)
        except KafkaException as error:
            self._refresh_at = now_s + RETRY_S
            self._report(f"Kafka does not answer: {error.args[0].str()}")
            if now_s - self._answered_at > REFRESH_S:  # it may have lost all addresses (lost_brokers.py)
                self._consumer.close()
                self._consumer, self._assigned, self._answered_at = make_consumer(self._settings), set(), now_s
            return
        missing = [str(topic) for topic in self._back_ms if topic not in {name for name, _ in places}]
        if denied or missing:
            self._refresh_at = now_s + RETRY_S
        if denied:
            self._report(
                f"{principal(self._settings)} lacks ACLs: Read on topics {', '.join(denied)} and group {GROUP}"
            )
        else:
            self._report(f"no topic {', '.join(missing)}: `drumline topics apply` creates them" if missing else "")

    def _listed(self) -> tuple[set[Place], list[str]]:
        places, denied = set(), []
        for topic in self._back_ms:
            listed = self._consumer.list_topics(str(topic), timeout=METADATA_S).topics[str(topic)]
            if listed.error is None:
                places |= {(str(topic), number) for number in listed.partitions}
            elif listed.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                denied.append(str(topic))
        return places, denied

    def _assign(self, new: set[Place]) -> None:
        starts = self._starts(new)
        at = {(p.topic, p.partition): p.offset for p in self._consumer.position(_partitions(self._assigned))}
        starts |= {place: offset for place, offset in at.items() if offset >= 0}
        self._assigned |= new
        self._open_ends |= new
        self._consumer.assign(
            [TopicPartition(*place, starts.get(place, OFFSET_END)) for place in sorted(self._assigned)]
        )

    def _starts(self, places: set[Place]) -> dict[Place, int]:
        """Return the offset of the first record that may still count, of each place; the end where there is none."""
        wanted = [TopicPartition(topic, number, self._started_ms - self._back_ms[Topic(topic)])
                  for topic, number in places]  # fmt: skip
        answers = self._consumer.offsets_for_times(wanted, timeout=METADATA_S)
        return {(p.topic, p.partition): p.offset if p.offset >= 0 else OFFSET_END for p in answers}

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("verdicts are not read", problem=problem)
        self.problem = problem


def _partitions(places: set[Place]) -> list[TopicPartition]:
    return [TopicPartition(*place) for place in places]
