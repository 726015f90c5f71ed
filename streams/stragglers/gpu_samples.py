"""GPU samples of one run, in a store of bytes.

Keys: d|bucket|rank|run, where a bucket is BUCKET_NS of one rank.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, merged, sample_rows

#: Time that one stored value covers, in ns, and the number of values kept of a rank.
BUCKET_NS, BUCKETS = 10_000_000_000, 32


class SampleState:
    """Stores the samples of one run for its `JobState`.

    `buckets`: rank -> its stored buckets.
    """

    def __init__(self, store: MutableMapping[str, bytes], run: str) -> None:
        self.store, self.run = store, run
        self.buckets: dict[int, set[int]] = {}

    def apply(self, batch: Batch, offset: int) -> tuple[int, int] | None:
        """Apply a gpu.device.v1 batch and return its first and last time, None without rows.

        A bucket that was written at this offset or later stays as it is.
        """
        rank, rows = int(batch.envelope["rank"]), sample_rows(batch)
        bucket_of = rows["time_ns"] // BUCKET_NS
        kept = self.buckets.setdefault(rank, set())
        for bucket in np.unique(bucket_of).tolist():
            name = key("d", bucket, rank, self.run)
            data, new = self.store.get(name), rows[bucket_of == bucket]
            old = None if data is None else unpack_rows(data, SAMPLE_ROW)
            if old is None or offset > old.offset:
                self.store[name] = pack_rows(offset, {}, merged(new if old is None else old.rows, new))
                kept.add(bucket)
        for bucket in sorted(kept)[:-BUCKETS]:
            kept.discard(bucket)
            self.store.pop(key("d", bucket, rank, self.run), None)
        return (int(rows["time_ns"].min()), int(rows["time_ns"].max())) if len(rows) else None

    def rows(self, rank: int, start_ns: int, end_ns: int) -> Rows:
        """Return the SAMPLE_ROW rows of a rank in a span of time, both ends included."""
        parts = [np.zeros(0, SAMPLE_ROW)]
        for bucket in sorted(self.buckets.get(rank, ())):
            if start_ns // BUCKET_NS <= bucket <= end_ns // BUCKET_NS:
                parts.append(unpack_rows(self.store[key("d", bucket, rank, self.run)], SAMPLE_ROW).rows)
        stored = stacked(parts)
        inside: Rows = stored[(stored["time_ns"] >= start_ns) & (stored["time_ns"] <= end_ns)]
        return inside

    def forget(self) -> None:
        """Delete all samples of the run."""
        for rank, buckets in self.buckets.items():
            for bucket in buckets:
                self.store.pop(key("d", bucket, rank, self.run), None)
