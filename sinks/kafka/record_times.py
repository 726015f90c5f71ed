"""Read when Kafka received single records, by which a log is recognized (ranges/stored_tail.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import FETCH_BYTES, UNPACKED_BYTES, client_config
from drumline.infra.kafka.connect import silence_librdkafka
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.ranges.disposition import published_ms

Place = tuple[str, int]
TIMEOUT_S = 30.0
OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
#: Instead of a time: the log does not have the offset.
BEYOND = -1


def reader(settings: Settings, client_id: str) -> Consumer:
    """Return a consumer for `record_times`; it joins no group and commits nothing. The caller closes it."""
    return Consumer(
        {
            **silence_librdkafka(client_config(settings, client_id)),
            "group.id": settings.sink.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 1_024,  # of each partition, only the batch with the record is needed
            "fetch.max.bytes": FETCH_BYTES,
            "receive.message.max.bytes": UNPACKED_BYTES,
        }
    )


def record_times(consumer: Consumer, offsets: Mapping[Place, int]) -> dict[Place, int]:
    """Return when Kafka received the record at each place's offset, as the ledger stores it (ms since the epoch).

    BEYOND where the log does not reach it. Left out where it does, but has no such record, because of compaction or
    transactions, or cannot be unpacked. Blocks for up to TIMEOUT_S. Retry later: TransientKafkaError.
    """
    times: dict[Place, int] = {}
    waiting = dict(offsets)
    places = [TopicPartition(*place, offset) for place, offset in offsets.items()]
    consumer.assign(places)
    until = time.monotonic() + TIMEOUT_S
    try:
        while waiting:
            if time.monotonic() > until:
                (topic, partition), offset = next(iter(waiting.items()))
                raise TransientKafkaError(f"{topic} partition {partition}: offset {offset} could not be read in time")
            message: Any = consumer.poll(0.5)
            if message is None:
                continue
            place, error = (message.topic(), message.partition()), message.error()
            wanted = waiting.get(place)
            if wanted is None:
                continue
            if error is None:
                if message.offset() == wanted:
                    times[place] = published_ms(message.timestamp()[1])
            elif error.code() in OUT_OF_RANGE or (
                error.code() == KafkaError._PARTITION_EOF and message.offset() <= wanted
            ):
                times[place] = BEYOND
            elif error.code() not in (KafkaError._PARTITION_EOF, KafkaError._BAD_COMPRESSION):
                continue  # connections come back
            del waiting[place]
            consumer.pause([TopicPartition(*place)])
    finally:
        consumer.resume(places)  # a pause would outlast the assignment
        consumer.unassign()
    return times
