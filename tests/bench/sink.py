"""The exactly-once sink against plain at-least-once inserts of the same blocks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from drumline.bench.figures import Meter, Report
from drumline.bench.private import engine_cpu_s, private_stack
from drumline.infra import clickhouse
from drumline.infra.clickhouse import INSERT_SETTINGS
from drumline.infra.kafka import producer_config
from drumline.infra.settings import Settings, SinkSettings
from drumline.producers.publisher import Publisher
from drumline.producers.recorded import Recording
from drumline.producers.replay import replay
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.consumer import SinkConsumer, consumer_config
from drumline.sinks.deadletter import DeadLetters
from drumline.sinks.rows import rows_block
from drumline.sinks.sink import Sink
from drumline.sinks.tables import table

BAR = 500e3
PLAIN = "kernels_plain"
STUCK_S = 120.0
Progress = Callable[[str], None]


def publish(settings: Settings, folder: Path, topics: list[Topic] | None, loops: int) -> tuple[dict[str, int], int]:
    """Replay as fast as possible: (rows by topic, messages). Raises RuntimeError if something was not taken."""
    publisher = Publisher(settings, Codec(), "drumline-bench")
    summary = replay(Recording(folder, topics=topics, loop=loops), publisher)
    if summary.problem or summary.interrupted:
        raise RuntimeError(f"the recording was not published: {summary.problem or 'interrupted'}")
    return summary.rows, sum(summary.batches.values())


def plain_inserts(settings: Settings, messages: int) -> int:
    """At least once, as simple as it gets: read, decode, insert at flush_rows, commit. The rows inserted."""
    codec, stored = Codec(), table(Topic.KERNEL)
    names = [column.name for column in stored.columns]
    options: dict[str, str | int] = {"group.id": "bench-plain", "auto.offset.reset": "earliest", "log_level": 2}
    shared = consumer_config(settings.model_copy(update={"sink": SinkSettings()}))
    consumer = Consumer({**shared, **options, "enable.partition.eof": False})
    consumer.subscribe([Topic.KERNEL.value])
    client = clickhouse.connect(settings)
    held: dict[int, list[tuple[Batch, int, int]]] = {}
    seen = rows = 0
    until = time.monotonic() + STUCK_S

    def insert(number: int) -> int:
        batches = held.pop(number)
        count, block = rows_block(
            stored,
            f"plain:{number}",
            [b for b, _, _ in batches],
            [o for _, o, _ in batches],
            [t for _, _, t in batches],
        )
        client.raw_insert(
            f"{settings.clickhouse.database}.{PLAIN}",
            column_names=names,
            insert_block=block,
            fmt="Native",
            settings=INSERT_SETTINGS,
        )
        last = TopicPartition(stored.topic.value, number, batches[-1][1] + 1)
        consumer.commit(offsets=[last], asynchronous=False)
        return count

    try:
        while seen < messages and time.monotonic() < until:
            message = consumer.poll(0.1)
            value = None if message is None or message.error() else message.value()
            if message is None or value is None:
                continue
            seen += 1
            batch, number = codec.decode(Topic.KERNEL, value), message.partition() or 0
            if batch.rows:
                held.setdefault(number, []).append((batch, message.offset() or 0, message.timestamp()[1]))
            if sum(b.rows for b, _, _ in held.get(number, [])) >= settings.sink.flush_rows:
                rows += insert(number)
        for number in list(held):
            rows += insert(number)
    finally:
        consumer.close()
        client.close()
    return rows


def exactly_once(settings: Settings, messages: int) -> int:
    """Our sink in this process until it has dealt with so many records; the rows it stored."""
    until = time.monotonic() + STUCK_S

    def stopping() -> bool:
        return made.counts.records >= messages or time.monotonic() > until

    letters = DeadLetters(Producer({**producer_config(settings, "bench-letters"), "log_level": 2}))
    made = Sink(
        settings,
        SinkConsumer(settings, [Topic.KERNEL]),
        letters,
        lambda: clickhouse.connect(settings),
        Codec(),
        stopping=stopping,
    )
    made.run()
    return made.counts.rows


def bench_sink(folder: Path, loops: int = 6, progress: Progress = lambda _: None) -> Report:
    """Kernels only. CPU is that of the sink's process, librdkafka's threads included; the engine's stands beside it."""
    report = Report("sink", f"recorded kernels, {loops} loops", "the same blocks without intent, token and ledger")
    progress("starting Kafka and ClickHouse")
    with private_stack() as settings:
        database = settings.clickhouse.database
        client = clickhouse.connect(settings)
        clickhouse.command(client, f"CREATE TABLE {database}.{PLAIN} AS {database}.kernels")
        progress("publishing")
        rows_by_topic, messages = publish(settings, folder, [Topic.KERNEL], loops)
        wanted = rows_by_topic[Topic.KERNEL]
        progress("plain inserts")
        before = engine_cpu_s(settings)
        with Meter() as plain:
            plain_rows = plain_inserts(settings, messages)
        plain_engine = engine_cpu_s(settings) - before
        progress("the sink")
        before = engine_cpu_s(settings)
        with Meter() as ours:
            rows = exactly_once(settings, messages)
        gc.collect()  # clients that outlive the broker complain
        engine = engine_cpu_s(settings) - before
        stored = clickhouse.rows(client, f"SELECT count() AS n FROM {database}.kernels")[0]["n"]
        client.close()
    if not wanted == rows == plain_rows == stored:
        raise RuntimeError(f"{wanted} rows published, {rows} by the sink, {stored} stored, {plain_rows} plain")
    million = wanted / 1e6
    report.add("sink, one core", wanted / ours.cpu_s, "rows/CPU s", wanted / plain.cpu_s, bar=BAR)
    report.add("wall clock, start and group join included", wanted / ours.wall_s, "rows/s", wanted / plain.wall_s)
    report.add("messages", messages / ours.wall_s, "1/s", messages / plain.wall_s)
    report.add("sink CPU per million rows", ours.cpu_s / million, "s", plain.cpu_s / million)
    report.add("engine CPU per million rows", engine / million, "s", plain_engine / million)
    report.notes.append(
        f"{wanted:,} rows in {messages:,} messages; all stored once. Broker and engine share the machine."
    )
    report.notes.append("The plain inserts ran first. Wall clock holds the wait for the consumer group, seconds each.")
    return report
