"""Samples of the GPUs and processes of one run, in a store of bytes.

Keys: d|bucket|rank|run_key for GPUs, p|bucket|rank|run_key for processes. A bucket is BUCKET_NS of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, merged, sample_rows
from drumline.streams.stragglers.analysis.host_cause import HOST_ROW, host_rows

#: Time that one stored value covers, in ns, and the number of values kept of a rank.
BUCKET_NS, BUCKETS = 10_000_000_000, 32


class SampleKind(NamedTuple):
    """Kind of samples: first part of its keys, type of its rows, and how they are read from a batch."""

    key: str
    dtype: np.dtype[Any]
    rows_of: Callable[[Batch], Rows]


DEVICE = SampleKind("d", SAMPLE_ROW, sample_rows)
HOST = SampleKind("p", HOST_ROW, host_rows)


class SampleState:
    """Stores the samples of one kind and run for its `JobState`.

    `buckets`: rank -> its stored buckets.
    """

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, kind: SampleKind) -> None:
        self.store, self.run_key, self.kind = store, run_key, kind
        self.buckets: dict[int, set[int]] = {}

    def apply(self, batch: Batch, offset: int) -> tuple[int, int] | None:
        """Apply a batch and return the first and last time that it is about, None without rows.

        A bucket that was written at this offset or later stays as it is.
        """
        rank, rows = int(batch.envelope["rank"]), self.kind.rows_of(batch)
        bucket_of = rows["time_ns"] // BUCKET_NS
        kept = self.buckets.setdefault(rank, set())
        buckets = sorted(set(bucket_of.tolist()))
        for bucket in buckets:
            name = self._key(bucket, rank)
            data, new = self.store.get(name), rows if len(buckets) == 1 else rows[bucket_of == bucket]
            old = None if data is None else unpack_rows(data, self.kind.dtype)
            if old is None or offset > old.offset:
                self.store[name] = pack_rows(offset, {}, merged(new if old is None else old.rows, new))
                kept.add(bucket)
        for bucket in sorted(kept)[:-BUCKETS]:
            kept.discard(bucket)
            self.store.pop(self._key(bucket, rank), None)
        if not len(rows):
            return None
        begin = rows["time_ns"] - (rows["interval_ns"] if "interval_ns" in (self.kind.dtype.names or ()) else 0)
        return int(begin.min()), int(rows["time_ns"].max())

    def rows(self, rank: int, start_ns: int, end_ns: int) -> Rows:
        """Return the rows of a rank in a span of time, both ends included."""
        parts = [np.zeros(0, self.kind.dtype)]
        for bucket in sorted(self.buckets.get(rank, ())):
            if start_ns // BUCKET_NS <= bucket <= end_ns // BUCKET_NS:
                parts.append(unpack_rows(self.store[self._key(bucket, rank)], self.kind.dtype).rows)
        stored = stacked(parts)
        inside: Rows = stored[(stored["time_ns"] >= start_ns) & (stored["time_ns"] <= end_ns)]
        return inside

    def forget(self) -> None:
        """Delete all samples of the run."""
        for rank, buckets in self.buckets.items():
            for bucket in buckets:
                self.store.pop(self._key(bucket, rank), None)

    def _key(self, bucket: int, rank: int) -> str:
        return key(self.kind.key, bucket, rank, self.run_key)
