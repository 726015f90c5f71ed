"""Synthetic batches, and a pipeline of a private stack to put them through."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer
from support import migrated_database
from support.drumline_program import DrumlineProgram
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.topic_admin import TopicsAdmin, declared_topics, plan
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.model import model
from drumline.schemas.topics import Topic
from drumline.sinks.audit.audit import audit
from drumline.sinks.audit.kafka_side import KafkaFacts
from drumline.sinks.audit.queries import Queries
from drumline.sinks.audit.report import AuditReport
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterProducer
from drumline.sinks.sink import Sink

#: Times of synthetic rows: now, so that retention leaves them alone.
#: When a batch's rows begin, which last a second: they do not fall into two windows, whenever a test is run.
NOW_NS = time.time_ns() // (20 * 10**9) * 20 * 10**9


def any_batch(topic: Topic, rows: int, process: str, sequence: int, seed: int = 0) -> Batch:
    """A batch with something in every column; the same arguments give the same batch."""
    rng = np.random.default_rng([rows, sequence, seed])
    shape = model(topic)
    envelope: dict[str, Any] = {
        "job": "job", "run": "run", "rank": seed, "host": f"host-{seed % 2}", "gpu_uuid": f"GPU-{seed}",
        "process_id": process, "sequence": sequence, "rows": rows, "base_time_ns": NOW_NS,
        **{name: [f"{name}-{i}" for i in range(3)] for name in shape.dictionaries},
    }  # fmt: skip
    envelope = {name: value for name, value in envelope.items() if name in shape.envelope}
    for name in shape.topic_fields:
        if name in ("window_start_ns", "window_end_ns", "start_ns", "time_ns") and name not in {
            c.name for c in shape.columns
        }:
            envelope[name] = NOW_NS + (10**10 if name == "window_end_ns" else 0)
    columns = {}
    for column in shape.columns:
        if column.base:
            columns[column.name] = NOW_NS + np.sort(rng.integers(0, 10**9, rows))
        elif column.dictionary or column.dtype.itemsize == 1:
            columns[column.name] = rng.integers(0, 2, rows).astype(column.dtype)
        else:
            percent = column.name.startswith(("util", "fan", "job_util")) or column.name.endswith(
                ("_active", "occupancy")
            )
            most = 100 if percent else 30_000
            columns[column.name] = rng.integers(0, most, rows).astype(column.dtype)
    return Batch(topic, envelope, columns)


def process_id(index: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, str(index)))


@dataclass
class Pipeline:
    """Topics, tables, sinks and audit of one test."""

    settings: Settings
    environment: dict[str, str]
    published: dict[str, int] = field(default_factory=dict)
    sinks: list[DrumlineProgram] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.codec = Codec()
        self.create_topics()
        migrated_database.create(self.settings)
        self.producer = Producer(producer_config(self.settings, "test") | {"linger.ms": 0})

    def create_topics(self) -> None:
        admin = TopicsAdmin(self.settings)
        topics = declared_topics(self.settings, None)
        admin.apply(topics, plan(topics, admin.existing(topic.name for topic in topics)))

    @cached_property
    def kept_client(self) -> clickhouse.Client:
        """For many statements while the server stays up: to connect costs three queries."""
        return self.client()

    def client(self) -> clickhouse.Client:
        return clickhouse.connect(self.settings)

    def query(self, sql: str, client: clickhouse.Client | None = None) -> list[dict[str, Any]]:
        return clickhouse.rows(client or self.client(), sql.replace("{db}", self.settings.clickhouse.database))

    def publish(self, *batches: Batch, key: str | None = None, again: bool = False) -> None:
        """`again`: a repetition, which adds nothing to what should be stored."""
        for batch in batches:
            self.raw(batch.topic, key or batch.envelope["process_id"], self.codec.encode(batch), flush=False)
            if not again:
                self.published[batch.topic] = self.published.get(batch.topic, 0) + batch.rows
        assert self.producer.flush(20) == 0

    def raw(self, topic: str, key: str, value: bytes | None, flush: bool = True) -> None:
        self.producer.produce(topic, key=key, value=value)
        if flush:
            assert self.producer.flush(20) == 0

    def start(self, *arguments: str, **settings: object) -> DrumlineProgram:
        """`drumline sink` as a process of its own."""
        environment = {**self.environment, **{f"DRUMLINE_SINK__{k.upper()}": str(v) for k, v in settings.items()}}
        process = DrumlineProgram(("sink", *arguments), environment)
        self.sinks.append(process)
        return process

    def ledger(self, client: clickhouse.Client | None = None) -> int:
        """Records that are stored, or dead, so far."""
        return int(self.query("SELECT count() AS n FROM {db}.ledger", client)[0]["n"])

    def started(self, *arguments: str, **settings: object) -> DrumlineProgram:
        """As `start`, and it has stored something: a kill then interrupts its work."""
        client = self.client()  # one for all: to connect costs more than to ask
        before, until = self.ledger(client), time.monotonic() + WAIT_S
        process = self.start(*arguments, **settings)
        while self.ledger(client) == before:
            assert time.monotonic() < until, "it stores nothing"
            time.sleep(0.02)
        client.close()
        return process

    def sink(
        self,
        stopping: Callable[[Sink], bool],
        topics: list[Topic] | None = None,
        codec: Codec | None = None,
        accept_loss: bool = False,
    ) -> Sink:
        """A sink in this process, not yet running. `codec`: of its own, not of who publishes."""
        kafka = SinkConsumer(self.settings, topics or [Topic.KERNEL], accept_loss=accept_loss)
        created = Sink(
            self.settings, kafka, DeadLetterProducer(lambda: self.producer), self.client, codec or self.codec,
            stopping=lambda: stopping(created),
        )  # fmt: skip
        return created

    def drain(self, records: int, topics: list[Topic] | None = None) -> Sink:
        """Run a sink in this process until it has dealt with so many records."""
        self.settings.instance, self.settings.sink.flush_s = "1", 0.05
        created = self.sink(lambda sink: sink.counts.records >= records, topics)
        created.run()
        return created

    def drained(self) -> bool:
        with closing(KafkaFacts(self.settings)) as facts:
            return self._drained(facts)

    def _drained(self, facts: KafkaFacts) -> bool:
        return not any(place.waiting or place.pending for place in facts.partitions(self.published))

    def wait_drained(self, timeout_s: float = WAIT_S) -> None:
        until = time.monotonic() + timeout_s
        with closing(KafkaFacts(self.settings)) as facts:
            while not self._drained(facts):
                for process in self.sinks:
                    assert process.poll() in (None, 0, -9), process.stderr.read().decode()[-2_000:]
                assert time.monotonic() < until, "not drained in time"
                time.sleep(0.2)

    def stop(self) -> None:
        for process in self.sinks:
            if process.poll() is None:
                process.terminate()
        for process in self.sinks:
            if process.wait(WAIT_S) not in (0, -9):
                raise AssertionError(process.stderr.read().decode()[-2_000:])
        self.sinks.clear()

    def audit(self, job: str = "", run: str = "") -> AuditReport:
        facts = KafkaFacts(self.settings)
        try:
            return audit(facts, Queries(self.client(), self.settings, job, run))
        finally:
            facts.close()

    def assert_exactly_once(self) -> AuditReport:
        """The audit is clean and every published row is in its table."""
        report = self.audit()
        assert report.clean, json.dumps(report.as_json(), indent=1, default=str)
        stored = {account.topic: account.rows_stored for account in report.topics}
        assert {topic: stored[topic] for topic in self.published} == self.published
        return report

    def dead_letters(self, topic: Topic, count: int, timeout_s: float = WAIT_S) -> list[Any]:
        consumer = Consumer({
            "bootstrap.servers": self.settings.bootstrap, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest",
        })  # fmt: skip
        consumer.subscribe([f"{topic.value}.dlq"])
        messages: list[Any] = []
        until = time.monotonic() + timeout_s
        while len(messages) < count and time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                messages.append(message)
        consumer.close()
        return messages
