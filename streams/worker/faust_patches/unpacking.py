"""Bound what a batch of records may unpack to: aiokafka unpacks it whole, and 25 kB may come to gigabytes.

A batch beyond the bound becomes one record without value, at the batch's last offset: the worker makes a dead letter of
it and goes on behind the batch.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import cramjam
import numpy as np
import structlog

from drumline.infra.kafka.config import UNPACKED_BYTES
from drumline.infra.telemetry import metrics

log = structlog.get_logger()
#: What each thread unpacks into: to take new pages for each batch cost several times the unpacking.
_memory = threading.local()


def limit_unpacking() -> None:
    """Replace aiokafka's functions in this process. Raises AttributeError with an aiokafka that has others.

    Snappy needs no bound: it unpacks to 21 times its size at most.
    """
    from aiokafka.consumer import fetcher
    from aiokafka.record.default_records import DefaultRecordBatch

    codecs = import_module(DefaultRecordBatch.__module__)
    for name in ("gzip", "lz4", "zstd"):
        _ = getattr(codecs, f"{name}_decode")
        setattr(codecs, f"{name}_decode", partial(_unpack, getattr(cramjam, name).decompress_into))

    class BoundedRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types here
        def __init__(self, tp: Any, records: Any, *more: Any) -> None:
            super().__init__(tp, _Batches(tp, records), *more)

    fetcher.PartitionRecords = BoundedRecords


def _unpack(unpack_into: Any, data: Any) -> bytes:
    """Return the unpacked data. Raises cramjam.DecompressionError where it is damaged, or too large."""
    out = getattr(_memory, "out", None)
    if out is None:  # takes memory and time only where it is written; a bytearray is zeroed
        out = _memory.out = np.empty(UNPACKED_BYTES, np.uint8)
    return out[: unpack_into(data, out)].tobytes()


class _Batches:
    """Yields the batches of one answer of the broker; wraps aiokafka's MemoryRecords."""

    def __init__(self, tp: Any, records: Any) -> None:
        self._tp, self._records = tp, records

    def has_next(self) -> bool:
        has_next: bool = self._records.has_next()
        return has_next

    def next_batch(self) -> _Batch:
        return _Batch(self._tp, self._records.next_batch())


class _Batch:
    """Yields the records of a batch, or one record without value."""

    def __init__(self, tp: Any, batch: Any) -> None:
        self._tp, self._batch = tp, batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        batch, tp = self._batch, self._tp
        try:
            return iter(batch)
        except cramjam.DecompressionError as error:
            last = batch.next_offset - 1
            metrics.STREAM_UNREADABLE.labels(tp.topic).inc()
            log.error(
                "a batch cannot be unpacked, or to more than a worker takes; it is one dead letter",
                topic=tp.topic, partition=tp.partition, first=batch.base_offset, last=last, error=str(error),
            )  # fmt: skip
            stamp = {"timestamp": batch.max_timestamp, "timestamp_type": batch.timestamp_type}
            empty = {"key": None, "value": None, "checksum": None, "headers": ()}
            return iter((SimpleNamespace(offset=last, **stamp, **empty),))
