"""Transfers of the ranks of one run, in a store of bytes.

Keys: n|bucket|slice|run_key. A bucket is BUCKET_NS of RANKS_OF_VALUE ranks; its head has the names that its rows count.
Those from before the oldest window that is kept go with the window before it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np

from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.records import Rows, key, pack_rows, stacked, unpack_rows
from drumline.streams.stragglers.links.flows import NO_TRANSFERS, TRANSFER_ROW, StoredTransfers
from drumline.streams.stragglers.slices import cut

#: Rows of a value: with more it would not fit into a message of the changelog. Those with most bytes are kept.
MOST_ROWS = 32_768
#: Time that one stored value covers, in ns, and the number of values kept of a slice of ranks.
BUCKET_NS, BUCKETS = 10_000_000_000, 32
SEND = "send"
#: Lists of names in a head, and the columns of rows that count them.
_NAMES = ("communicators", "nics", "addresses")
_COLUMNS = (("communicator",), ("nic",), ("local", "remote"))
#: Of TCP connections.
_OF_KERNEL = ("network_ns", "retransmitted", "delivery_rate")


def _with_most(stored: StoredTransfers) -> StoredTransfers:
    """Return at most MOST_ROWS rows, in their order: an all-to-all over a thousand hosts has more, each of little."""
    if len(stored.rows) <= MOST_ROWS:
        return stored
    largest = np.argsort(-stored.rows["bytes"], kind="stable")[:MOST_ROWS]
    return stored._replace(rows=stored.rows[np.sort(largest)])


class TransferState:
    """Stores the transfers of one run for its `JobState`. `buckets`: slice of ranks -> its stored buckets."""

    __slots__ = ("_run_key", "_store", "buckets")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str) -> None:
        self._store, self._run_key = store, run_key
        self.buckets: dict[int, set[int]] = {}

    def apply(self, table: RecordTable, offsets: Ints) -> Rows:
        """Apply gpu.transfer.v1 and return the rows that are new.

        A part that a bucket has already, by its offset, does not count again in it.
        """
        rows, names = _rows(table)
        taken = [np.zeros(0, TRANSFER_ROW)]
        for (bucket, part), new, of_rows in cut(rows, rows["time_ns"] // BUCKET_NS, table.part_of):
            place = self._key(bucket, part)
            old, known = self._load(place)
            new = new[offsets[of_rows] > known]
            if not len(new):
                continue
            taken.append(new)
            merged = _with_most(_merged([old, StoredTransfers(new, *names)]))
            head = dict(zip(_NAMES, merged[1:], strict=True))
            self._store[place] = pack_rows(int(offsets[of_rows].max()), head, merged.rows)
            kept = self.buckets.setdefault(part, set())
            kept.add(bucket)
            for oldest in sorted(kept)[:-BUCKETS] if len(kept) > BUCKETS else ():
                self._drop(part, oldest)
        return stacked(taken)

    def between(self, start_ns: int, end_ns: int) -> StoredTransfers:
        """Return the rows of the buckets that a span of time touches, both ends included."""
        first, last = start_ns // BUCKET_NS, end_ns // BUCKET_NS
        names = [
            self._key(bucket, part)
            for part, kept in sorted(self.buckets.items())
            for bucket in sorted(kept)
            if first <= bucket <= last
        ]
        return _merged([self._load(name)[0] for name in names]) if names else NO_TRANSFERS

    def drop_before(self, begin_ns: Mapping[int, int]) -> None:
        """Delete buckets that end before a time. `begin_ns`: slice of ranks -> time; others keep what they have."""
        for part, begin in begin_ns.items():
            for old in [bucket for bucket in self.buckets.get(part, ()) if bucket < begin // BUCKET_NS]:
                self._drop(part, old)

    def forget(self) -> None:
        """Delete all transfers of the run."""
        for part, buckets in self.buckets.items():
            for bucket in list(buckets):
                self._drop(part, bucket)

    def _drop(self, part: int, bucket: int) -> None:
        self.buckets[part].discard(bucket)
        self._store.pop(self._key(bucket, part), None)

    def _load(self, place: str) -> tuple[StoredTransfers, int]:
        """Return the rows of a bucket, and the offset up to which it has records; -1 = it has none."""
        data = self._store.get(place)
        if data is None:
            return NO_TRANSFERS, -1
        record = unpack_rows(data, TRANSFER_ROW)
        return StoredTransfers(record.rows, *(record.head[name] for name in _NAMES)), record.offset

    def _key(self, bucket: int, part: int) -> str:
        return key("n", bucket, part, self._run_key)


def _rows(table: RecordTable) -> tuple[Rows, tuple[list[str], list[str], list[str]]]:
    """Return the rows of gpu.transfer.v1, and the names that they count."""
    rows = np.zeros(table.rows, TRANSFER_ROW)
    columns = table.columns
    for name in (
        "first_step",
        "last_step",
        "duration_ns",
        "comm_rank",
        "peer",
        "transfers",
        "bytes",
        "busy_ns",
        *_OF_KERNEL,
    ):
        rows[name] = columns[name]
    rows["time_ns"], rows["rank"] = columns["start_ns"], table.ranks
    rows["collectives"] = columns["operations"] / np.maximum(columns["channels"], 1)
    communicators, rows["communicator"] = _indices(table, "communicator", "communicators")
    nics, rows["nic"] = _indices(table, "nic", "nics")
    directions, direction = _indices(table, "direction", "directions")
    rows["is_send"] = np.array([name == SEND for name in directions] or [False])[direction]
    locals_, rows["local"] = _indices(table, "local", "locals")
    remotes, rows["remote"] = _indices(table, "remote", "remotes")
    rows["remote"] += len(locals_)
    return rows, (communicators, nics, locals_ + remotes)


def _indices(table: RecordTable, column: str, dictionary: str) -> tuple[list[str], Ints]:
    """Return the texts of a column, each once, and the place of each row's in them."""
    places: dict[str, int] = {}
    maps = [[places.setdefault(text, len(places)) for text in texts] for texts in table.lists(dictionary)]
    starts = np.cumsum([0, *map(len, maps)])[:-1]
    flat = np.array([place for of_part in maps for place in of_part] or [0], np.int64)
    at: Ints = flat[starts[table.part_of] + table.columns[column]] if table.rows else np.zeros(0, np.int64)
    return list(places), at


def _merged(parts: list[StoredTransfers]) -> StoredTransfers:
    """Return the rows of several, with names of their own."""
    known: tuple[dict[str, int], ...] = ({}, {}, {})
    out = []
    for part in parts:
        rows = part.rows.copy()
        for columns, texts, places in zip(_COLUMNS, part[1:], known, strict=True):
            of_text = np.array([places.setdefault(text, len(places)) for text in texts] or [0], np.int32)
            for column in columns:
                rows[column] = of_text[rows[column]]
        out.append(rows)
    return StoredTransfers(stacked(out), *map(list, known))
