"""Find where the next batch begins behind one that Kafka's client cannot unpack.

librdkafka then returns the same error for ever: the partition stands still. The error names the first offset of the
batch, whichever of its offsets is read, so the end of the batch is searched by reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, TopicPartition

from drumline.infra.telemetry import metrics
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.ranges.partition import PartitionState

log = structlog.get_logger()
#: Time for one read; s.
READ_S = 15.0
#: More records than any batch has: a producer counts them in 31 bits, but one batch of drumline's has thousands.
MOST_RECORDS = 1 << 24
#: Most batches in a row of one search, which has one consumer, and its time; s.
MOST_BATCHES, SEARCH_S = 256, 30.0
#: A batch: its first offset, and the first one behind it.
Extent = tuple[int, int]


def next_batch(first: int, inside: Callable[[int], bool]) -> int:
    """Return the first offset behind the batch that begins at `first`. `inside`: whether an offset lies in it.

    Takes about two reads for each bit of the number of its records.
    """
    step = 1
    while inside(first + step):
        step *= 2
        if step > MOST_RECORDS:
            raise TransientKafkaError(f"the end of the batch at offset {first} is not found")
    low, high = first + step // 2, first + step  # inside, and behind
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    return high


def batches_in_a_row(first: int, batch_at: Callable[[int], int], ended: Callable[[], bool]) -> list[Extent]:
    """Return the batch that begins at `first` and those behind it, up to one that can be read, or until `ended`.

    `batch_at`: offset -> first offset of the batch there that cannot be unpacked; -1 if there is none.
    """
    extents: list[Extent] = []
    while first >= 0 and len(extents) < MOST_BATCHES and not (extents and ended()):
        begin = first
        first = next_batch(begin, lambda offset, begin=begin: batch_at(offset) == begin)  # type: ignore[misc]
        extents.append((begin, first))
        first = batch_at(first)
    return extents


class UnreadableBatches:
    """Searches the ends of unreadable batches in one thread of its own, so that other partitions go on.

    Owned by `Sink`; called by its thread only. `reader`: creates a consumer that joins no group.
    """

    def __init__(self, reader: Callable[[], Consumer]) -> None:
        self._reader, self._ended = reader, threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="unreadable")
        self._searches: list[tuple[PartitionState, Future[list[Extent]]]] = []

    def search(self, state: PartitionState, first: int) -> None:
        """Start the search for the end of the batch at offset `first`; the partition is not fetched meanwhile."""
        topic = state.table.topic.value
        log.error("Kafka's client cannot unpack a batch", topic=topic, partition=state.partition, offset=first)
        state.unreadable = first
        self._searches.append((state, self._pool.submit(self._extents, topic, state.partition, first)))

    def take(self) -> list[tuple[PartitionState, list[Extent]]]:
        """Return (partition, batches in a row) of the searches that have ended.

        There are no batches where Kafka did not answer: the first is to be read again.
        """
        ended = [search for search in self._searches if search[1].done()]
        self._searches = [search for search in self._searches if not search[1].done()]
        result = []
        for state, future in ended:
            if error := future.exception():
                log.warning("no end of the batch", error=str(error))
            extents = [] if error else future.result()
            metrics.SINK_UNREADABLE.labels(state.table.topic.value).inc(len(extents))
            result.append((state, extents))
        return result

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)

    def _extents(self, topic: str, partition: int, first: int) -> list[Extent]:
        until = time.monotonic() + SEARCH_S
        with closing(self._reader()) as consumer:
            return batches_in_a_row(
                first,
                lambda offset: self._batch(consumer, TopicPartition(topic, partition, offset)),
                lambda: time.monotonic() > until or self._ended.is_set(),
            )

    def _batch(self, consumer: Consumer, place: TopicPartition) -> int:
        """Return the first offset of the batch that cannot be unpacked at `place`; -1 if there is none."""
        consumer.assign([place])
        until = time.monotonic() + READ_S
        try:
            while time.monotonic() < until and not self._ended.is_set():
                message: Any = consumer.poll(0.2)
                if message is None:
                    continue
                error = message.error()
                if error is not None and error.code() == KafkaError._BAD_COMPRESSION:
                    return int(message.offset())
                if error is None or error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                    return -1
        finally:
            consumer.unassign()
        raise TransientKafkaError(f"{place.topic} partition {place.partition}: no answer at offset {place.offset}")
