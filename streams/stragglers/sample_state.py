"""Samples of the GPUs and processes of one run, in a store of bytes.

Keys: d|bucket|slice|run_key for GPUs, p|bucket|slice|run_key for processes. A bucket is BUCKET_NS of RANKS_OF_VALUE
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.joined.merged import Ints
from drumline.schemas.joined.table import MergedParts
from drumline.streams.core.records import Rows, pack_text, stacked, unpack_rows
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, sample_rows
from drumline.streams.stragglers.analysis.host_cause import HOST_ROW, host_rows
from drumline.streams.stragglers.slices import RANKS_OF_VALUE, cut

#: Time that one stored value covers, in ns, and the number of values kept of a rank.
BUCKET_NS, BUCKETS = 10_000_000_000, 32
#: Rows of a value from which on those that are there twice are looked for.
MANY_ROWS = 1_024


class SampleKind(NamedTuple):
    """Kind of samples: first part of its keys, type of its rows, and how they are read. `stored`: rows with ranks."""

    key: str
    dtype: np.dtype[Any]
    rows_of: Callable[[Batch | MergedParts], Rows]

    @property
    def stored(self) -> np.dtype[Any]:
        """Return the type of stored rows: those of several ranks."""
        return _STORED[self.key]


DEVICE = SampleKind("d", SAMPLE_ROW, sample_rows)
HOST = SampleKind("p", HOST_ROW, host_rows)
#: Type of the stored rows of each kind: with their ranks, behind the time that they are sorted by.
_STORED = {kind.key: np.dtype([("time_ns", "<i8"), ("rank", "<i4"), *kind.dtype.descr[1:]]) for kind in (DEVICE, HOST)}


class SampledTimes(NamedTuple):
    """Holds of each sample its rank and what it is about: from `begin_ns` to `time_ns`."""

    ranks: Ints
    begin_ns: Ints
    time_ns: Ints


class SampleState:
    """Stores the samples of one kind and run for its `JobState`.

    `buckets`: slice of ranks -> its stored buckets.
    """

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, kind: SampleKind) -> None:
        self.store, self.run_key, self.kind = store, run_key, kind
        self.buckets: dict[int, set[int]] = {}

    def apply(self, batch: Batch | MergedParts, offsets: Ints) -> SampledTimes:
        """Apply a batch, or all parts of records, and return what its samples are about.

        A part that a bucket has already, by its offset, does not count again in it.
        """
        sampled = self.kind.rows_of(batch)
        rows = np.zeros(len(sampled), self.kind.stored)
        for name in self.kind.dtype.names or ():
            rows[name] = sampled[name]
        if isinstance(batch, MergedParts):
            rows["rank"], part_of = batch.ranks, batch.part_of
        else:
            rows["rank"], part_of = int(batch.envelope["rank"]), np.zeros(len(rows), np.int64)
        for (bucket, part), new, of_rows in cut(rows, rows["time_ns"] // BUCKET_NS, part_of):
            if not self._add(part, bucket, new, offsets[of_rows]):
                continue
            kept = self.buckets.setdefault(part, set())
            kept.add(bucket)
            for old in sorted(kept)[:-BUCKETS] if len(kept) > BUCKETS else ():
                kept.discard(old)
                self.store.pop(self._key(old, part), None)
        begin = rows["time_ns"] - (rows["interval_ns"] if "interval_ns" in (self.kind.dtype.names or ()) else 0)
        return SampledTimes(rows["rank"], begin, rows["time_ns"])

    def _add(self, part: int, bucket: int, new: Rows, offsets: Ints) -> bool:
        """Add rows to a bucket, and return whether some are new to it. `offsets`: of each."""
        name = self._key(bucket, part)
        data, rows = self.store.get(name), new
        if data is not None:
            old = unpack_rows(data, self.kind.stored)
            if offsets.min() <= old.offset:
                new = new[offsets > old.offset]
            if not len(new):
                return False
            rows = stacked([old.rows, new])
            if len(rows) // MANY_ROWS > len(old.rows) // MANY_ROWS:
                rows = _once(rows)
        self.store[name] = pack_text(int(offsets.max()), b"{}", rows)
        return True

    def rows(self, rank: int, start_ns: int, end_ns: int) -> Rows:
        """Return the rows of a rank in a span of time, both ends included, by time."""
        part, stored_rows = rank // RANKS_OF_VALUE, [np.zeros(0, self.kind.stored)]
        for bucket in sorted(self.buckets.get(part, ())):
            if start_ns // BUCKET_NS <= bucket <= end_ns // BUCKET_NS:
                stored = unpack_rows(self.store[self._key(bucket, part)], self.kind.stored).rows
                stored_rows.append(stored[stored["rank"] == rank])
        stored = _once(stacked(stored_rows))
        stored = stored[(stored["time_ns"] >= start_ns) & (stored["time_ns"] <= end_ns)]
        inside: Rows = np.zeros(len(stored), self.kind.dtype)
        for name in self.kind.dtype.names or ():
            inside[name] = stored[name]
        return inside

    def forget(self) -> None:
        """Delete all samples of the run."""
        for part, buckets in self.buckets.items():
            for bucket in buckets:
                self.store.pop(self._key(bucket, part), None)

    def _key(self, bucket: int, part: int) -> str:
        return f"{self.kind.key}|{bucket}|{part}|{self.run_key}"


def _once(rows: Rows) -> Rows:
    """Return rows by time, each once."""
    rises = rows["time_ns"][1:] > rows["time_ns"][:-1]  # as nearly always, of one rank
    return rows if rises.all() else np.unique(rows)
