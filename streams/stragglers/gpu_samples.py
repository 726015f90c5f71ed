"""GPU samples of one run, in a store of bytes. Keys: d|bucket|rank|run, a bucket being some seconds of one rank."""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, merged, sample_rows

#: Time that one stored value covers, and how many of them are kept of a rank; ns.
BUCKET_NS, BUCKETS = 10_000_000_000, 32


class SampleState:
    """`buckets`: rank -> those it has."""

    def __init__(self, store: MutableMapping[str, bytes], run: str) -> None:
        self.store, self.run = store, run
        self.buckets: dict[int, set[int]] = {}

    def apply(self, batch: Batch, offset: int) -> tuple[int, int] | None:
        """Take a gpu.device.v1 batch in; first and last time in it. A bucket that has seen this offset stays."""
        rank, rows = int(batch.envelope["rank"]), sample_rows(batch)
        bucket_of = rows["time_ns"] // BUCKET_NS
        kept = self.buckets.setdefault(rank, set())
        for bucket in np.unique(bucket_of).tolist():
            name = key("d", bucket, rank, self.run)
            data, mine = self.store.get(name), rows[bucket_of == bucket]
            old = None if data is None else unpack_rows(data, SAMPLE_ROW)
            if old is None or offset > old.offset:
                self.store[name] = pack_rows(offset, {}, merged(mine if old is None else old.rows, mine))
                kept.add(bucket)
        for bucket in sorted(kept)[:-BUCKETS]:
            kept.discard(bucket)
            self.store.pop(key("d", bucket, rank, self.run), None)
        return (int(rows["time_ns"].min()), int(rows["time_ns"].max())) if len(rows) else None

    def rows(self, rank: int, start_ns: int, end_ns: int) -> Rows:
        """SAMPLE_ROW rows of a rank in a span of time."""
        parts = [np.zeros(0, SAMPLE_ROW)]
        for bucket in sorted(self.buckets.get(rank, ())):
            if start_ns // BUCKET_NS <= bucket <= end_ns // BUCKET_NS:
                parts.append(unpack_rows(self.store[key("d", bucket, rank, self.run)], SAMPLE_ROW).rows)
        found = stacked(parts)
        inside: Rows = found[(found["time_ns"] >= start_ns) & (found["time_ns"] <= end_ns)]
        return inside

    def forget(self) -> None:
        for rank, buckets in self.buckets.items():
            for bucket in buckets:
                self.store.pop(key("d", bucket, rank, self.run), None)
