"""Runs one sink over records that are already in Kafka.

usage: ... plain|TOPIC[,TOPIC...] RECORDS [PROFILE]

The product's sink stores topics; `plain` inserts kernels at least once, in the simplest way. Prints one JSON object:
the values of self_sampling.py, and the rows stored.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import INSERT_SETTINGS
from drumline.infra.config.settings import Settings, SinkSettings, settings
from drumline.infra.kafka.config import producer_config
from drumline.infra.runtime.malloc import share_heap
from drumline.lab.bench.processes.profiling import profiled
from drumline.lab.bench.processes.self_sampling import SelfSampler
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.kafka.config import consumer_config
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterProducer
from drumline.sinks.sink import Sink
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.tables.tables import table

PLAIN = "kernels_plain"
STUCK_S = 300.0
Work = tuple[Callable[[], int], Callable[[], int]]


def plain_sink(settings: Settings, messages: int) -> Work:
    """Read, decode, insert at flush_rows, commit.

    Returns a function that works and returns the number of rows, and one that returns the records handled so far.
    """
    codec, stored = Codec(), table(Topic.KERNEL)
    names = [column.name for column in stored.columns]
    options: dict[str, str | int] = {
        "group.id": f"{settings.sink.group}-plain",
        "auto.offset.reset": "earliest",
        "log_level": 2,
    }
    shared = consumer_config(settings.model_copy(update={"sink": SinkSettings()}), [Topic.KERNEL])
    consumer = Consumer({**shared, **options, "enable.partition.eof": False})
    consumer.subscribe([Topic.KERNEL.value])
    client = clickhouse.connect(settings)
    held: dict[int, list[tuple[Batch, int, int]]] = {}
    seen = [0]

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

    def run() -> int:
        rows, until = 0, time.monotonic() + STUCK_S
        while seen[0] < messages and time.monotonic() < until:
            message = consumer.poll(0.1)
            value = None if message is None or message.error() else message.value()
            if message is None or value is None:
                continue
            seen[0] += 1
            batch, number = codec.decode(Topic.KERNEL, value), message.partition() or 0
            if batch.rows:
                held.setdefault(number, []).append((batch, message.offset() or 0, message.timestamp()[1]))
            if sum(b.rows for b, _, _ in held.get(number, [])) >= settings.sink.flush_rows:
                rows += insert(number)
        for number in list(held):
            rows += insert(number)
        consumer.close()
        return rows

    return run, lambda: seen[0]


def product_sink(settings: Settings, messages: int, topics: list[Topic]) -> Work:
    """Run the product's sink until it has handled that many records; returns as `plain_sink` does."""
    until = time.monotonic() + STUCK_S
    share_heap()  # as `drumline sink` does

    def stopping() -> bool:
        return sink.counts.records >= messages or time.monotonic() > until

    dead_letters = DeadLetterProducer(lambda: Producer({**producer_config(settings, "bench-letters"), "log_level": 2}))
    consumer = SinkConsumer(settings, topics)
    sink = Sink(settings, consumer, dead_letters, lambda: clickhouse.connect(settings), Codec(), stopping=stopping)

    def run() -> int:
        sink.run()
        return sink.counts.rows

    return run, lambda: sink.counts.records


def main() -> None:
    """Run the sink of the command line and print its measurements."""
    which, wanted = sys.argv[1], int(sys.argv[2])
    if which == "plain":
        run, handled = plain_sink(settings(), wanted)
    else:
        run, handled = product_sink(settings(), wanted, [Topic(name) for name in which.split(",")])
    sampler = SelfSampler(handled, wanted)
    with profiled(Path(sys.argv[3]) if sys.argv[3:] and sys.argv[3] else None, f"sink, {wanted} messages"):
        rows = run()
    print(json.dumps({**sampler.result(), "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
