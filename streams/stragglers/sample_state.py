"""Samples of the GPUs and processes of one run, in a store of bytes.

Keys: d|bucket|slice|run_key for GPUs, p|bucket|slice|run_key for processes. A bucket is BUCKET_NS of RANKS_OF_VALUE
ranks. Those from before the oldest window that is kept go with the window before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

import numpy as np

from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.records import Rows, StateRecord, pack_text, rows_begin, stacked, unpack_rows
from drumline.streams.stragglers.analysis.gpu_cause import SAMPLE_ROW, sample_rows
from drumline.streams.stragglers.analysis.host_cause import HOST_ROW, host_rows
from drumline.streams.stragglers.slices import RANKS_OF_VALUE, cut

#: Time that one stored value covers, in ns, and the number of values kept of a rank.
BUCKET_NS, BUCKETS = 10_000_000_000, 32
#: Rows of a value from which on those that are there twice are looked for.
MANY_ROWS = 1_024


class SampleKind(NamedTuple):
    """Kind of samples: first part of its keys, type of its rows, and how they are read.

    Rows begin with their time, and all numbers behind it have one type.
    """

    key: str
    dtype: np.dtype[Any]
    rows_of: Callable[[RecordTable], Rows]

    @property
    def wide(self) -> np.dtype[Any]:
        """Return the type of stored rows, those of several ranks, where a number needs all of its bytes."""
        return _WIDE[self.key]

    @property
    def narrow(self) -> np.dtype[Any]:
        """Return the type of all others: numbers in half of their bytes, as 320 s of 16,384 ranks are 600 MB else."""
        return _NARROW[self.key]


DEVICE = SampleKind("d", SAMPLE_ROW, sample_rows)
HOST = SampleKind("p", HOST_ROW, host_rows)
#: First part of the keys -> kind.
SAMPLE_KINDS = {kind.key: kind for kind in (DEVICE, HOST)}
#: Types of the stored rows of each kind: with their ranks, behind the time that they are sorted by.
_WIDE = {
    key: np.dtype([("time_ns", "<i8"), ("rank", "<i4"), *kind.dtype.descr[1:]]) for key, kind in SAMPLE_KINDS.items()
}
_NARROW = {
    key: np.dtype([*wide.descr[:2], *((name, f"<i{wide[name].itemsize // 2}") for name in (wide.names or ())[2:])])
    for key, wide in _WIDE.items()
}
#: Heads of values by the width of their rows.
_NARROW_HEAD, _WIDE_HEAD = b"{}", b'{"wide":1}'
#: Where the rows of a narrow value begin.
_NARROW_BEGIN = len(pack_text(0, _NARROW_HEAD))


class SampledTimes(NamedTuple):
    """Holds of each sample its rank and what it is about: from `begin_ns` to `time_ns`."""

    ranks: Ints
    begin_ns: Ints
    time_ns: Ints


class SampleState:
    """Stores the samples of one kind and run for its `JobState`.

    `buckets`: slice of ranks -> its stored buckets.
    """

    __slots__ = ("buckets", "kind", "run_key", "store")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str, kind: SampleKind) -> None:
        self.store, self.run_key, self.kind = store, run_key, kind
        self.buckets: dict[int, set[int]] = {}

    def apply(self, table: RecordTable, offsets: Ints) -> SampledTimes:
        """Apply samples and return what its samples are about.

        A part that a bucket has already, by its offset, does not count again in it.
        """
        sampled = self.kind.rows_of(table)
        rows = np.zeros(len(sampled), self.kind.narrow if self._is_narrow(sampled) else self.kind.wide)
        for name in self.kind.dtype.names or ():
            rows[name] = sampled[name]
        rows["rank"] = table.ranks
        for (bucket, part), new, of_rows in cut(rows, rows["time_ns"] // BUCKET_NS, table.part_of):
            if not self._add(part, bucket, new, offsets[of_rows]):
                continue
            kept = self.buckets.setdefault(part, set())
            kept.add(bucket)
            for old in sorted(kept)[:-BUCKETS] if len(kept) > BUCKETS else ():
                kept.discard(old)
                self.store.pop(self._key(old, part), None)
        begin = rows["time_ns"] - (rows["interval_ns"] if "interval_ns" in (self.kind.dtype.names or ()) else 0)
        return SampledTimes(rows["rank"], begin, rows["time_ns"])

    def _is_narrow(self, sampled: Rows) -> bool:
        """Return whether half of their bytes hold all numbers."""
        if not len(sampled):
            return True
        time, number = self.kind.dtype[0], self.kind.dtype[1]
        numbers = sampled.view(number).reshape(len(sampled), -1)[:, time.itemsize // number.itemsize :]
        limits = np.iinfo(self.kind.narrow[-1])
        return bool(limits.min <= numbers.min() and numbers.max() <= limits.max)

    def _add(self, part: int, bucket: int, new: Rows, offsets: Ints) -> bool:
        """Add rows to a bucket, and return whether some are new to it. `offsets`: of each; they do not fall."""
        name = self._key(bucket, part)
        data, parts = self.store.get(name), [new]
        if data is not None:
            old = self._unpacked(data)
            if int(offsets[0]) <= old.offset:
                new = new[offsets > old.offset]
            if not len(new):
                return False
            parts = self._alike([old.rows, new])
            if (len(old.rows) + len(new)) // MANY_ROWS > len(old.rows) // MANY_ROWS:
                parts = [_once(stacked(parts))]
        head = _NARROW_HEAD if parts[0].dtype == self.kind.narrow else _WIDE_HEAD
        self.store[name] = pack_text(int(offsets[-1]), head, *parts)
        return True

    def _unpacked(self, data: bytes) -> StateRecord:
        is_narrow = rows_begin(data) == _NARROW_BEGIN
        return unpack_rows(data, self.kind.narrow if is_narrow else self.kind.wide)

    def _alike(self, parts: list[Rows]) -> list[Rows]:
        """Return rows of one type, narrow if all of them are."""
        if any(part.dtype != parts[0].dtype for part in parts):
            return [part.astype(self.kind.wide) for part in parts]
        return parts

    def rows(self, rank: int, start_ns: int, end_ns: int) -> Rows:
        """Return the rows of a rank in a span of time, both ends included, by time."""
        part, stored_rows = rank // RANKS_OF_VALUE, [np.zeros(0, self.kind.narrow)]
        for bucket in sorted(self.buckets.get(part, ())):
            if start_ns // BUCKET_NS <= bucket <= end_ns // BUCKET_NS:
                stored = self._unpacked(self.store[self._key(bucket, part)]).rows
                stored_rows.append(stored[stored["rank"] == rank])
        stored = _once(stacked(self._alike(stored_rows)))
        stored = stored[(stored["time_ns"] >= start_ns) & (stored["time_ns"] <= end_ns)]
        inside: Rows = np.zeros(len(stored), self.kind.dtype)
        for name in self.kind.dtype.names or ():
            inside[name] = stored[name]
        return inside

    def drop_before(self, begin_ns: Mapping[int, int]) -> None:
        """Delete buckets that end before a time. `begin_ns`: slice of ranks -> time; others keep what they have."""
        for part, begin in begin_ns.items():
            kept = self.buckets.get(part, set())
            for old in [bucket for bucket in kept if bucket < begin // BUCKET_NS]:
                kept.discard(old)
                self.store.pop(self._key(old, part), None)

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
