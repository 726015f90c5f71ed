"""The rows of one communicator's last steps, in a store of bytes.

A value holds CHUNK_STEPS steps of some ranks, by the order in which the ranks came: a state write costs more than its
rows, and ranks of a communicator come at about one time, from many hosts. Rows are appended as they come. Comparing
puts them in order (blocks.py); so does a value that grows, as rows that come again must not make it large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from drumline.streams.core.records import Rows, StateRecord, key, pack_text, stacked, unpack_rows
from drumline.streams.lateness.collective_join import merge
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW
from drumline.streams.lateness.pieces import CHUNK_STEPS

#: Ranks of a value, and its bytes from which on it takes no other rank in.
RANKS_OF_VALUE, OPEN_BYTES = 32, 64 << 10
#: Bytes of rows from which on they are put in order the first time, and then whenever they have doubled.
TIDY_BYTES = 256 << 10
#: Bytes of rows in order that are divided, if they are of several ranks; those of one are put in order from then on
#: each time, as the changelog takes 4 MiB.
LARGE_BYTES = 1 << 20
Store = MutableMapping[str, bytes]
_NOTHING = np.zeros(0, COLLECTIVE_ROW)


@dataclass(slots=True)
class Value:
    """Describes a stored value.

    `offset`: of the last record applied to it. `items`: rank -> what it reported, as the head has it. `tidy_at`: bytes
    of rows from which on they are put in order. `origin`: the value that it was a half of.
    """

    name: str
    data: bytes = b""
    offset: int = -1
    items: dict[int, str] = field(default_factory=dict)
    tidy_at: int = 0
    origin: Value | None = None


@dataclass(slots=True)
class _Chunk:
    """Holds the values of a chunk, by number, the number of the value of each rank, and the last number."""

    values: dict[int, Value] = field(default_factory=dict)
    number_of: dict[int, int] = field(default_factory=dict)
    last: int = -1


class Chunks:
    """Keeps the chunks of one communicator of a run."""

    __slots__ = ("_chunks", "_communicator", "_run_key", "_store")

    def __init__(self, store: Store, communicator: str, run_key: str) -> None:
        self._store, self._communicator, self._run_key = store, communicator, run_key
        self._chunks: dict[int, _Chunk] = {}

    def key_of(self, chunk: int, number: int) -> str:
        """Return the store's key of a value of a chunk."""
        return key("m", chunk, number, self._communicator, self._run_key)

    def restore(self, chunk: int, number: int, record: StateRecord, items: dict[int, str]) -> None:
        """Index a value of the store. `items`: of its head."""
        name = self.key_of(chunk, number)
        of = self._chunks.setdefault(chunk, _Chunk())
        of.values[number] = Value(name, self._store[name], record.offset, items)
        of.last = max(of.last, number)
        for rank in list(items):  # in two values after a kill while one was divided: the newer one has all of it
            known = of.number_of.get(rank)
            if known is not None:
                older = known if of.values[known].offset < record.offset else number
                del of.values[older].items[rank]
                if older == number:
                    continue
            of.number_of[rank] = number

    def add(self, chunk: int, rows_of: Mapping[int, Rows], items: Mapping[int, tuple[str, int]]) -> set[int]:
        """Add rows of ranks, and return the ranks whose rows were added before: an offset counts once.

        `items`: rank -> what it reports as the items of a JSON array, and the offset of its last record; also of ranks
        that have completed steps without a row.
        """
        of = self._chunks.setdefault(chunk, _Chunk())
        ranks_of: dict[int, list[int]] = {}
        again = set()
        for rank, (_, offset) in items.items():
            number = of.number_of.get(rank)
            if number is None:
                number = self._place(chunk, of, rank, offset)
            elif offset <= of.values[number].offset:
                again.add(rank)
                continue
            ranks_of.setdefault(number, []).append(rank)
        for number, ranks in ranks_of.items():
            value = of.values[number]
            value.items.update({rank: items[rank][0] for rank in ranks})
            value.offset = max(value.offset, *(items[rank][1] for rank in ranks))
            self._append(chunk, of, number, [rows_of[rank] for rank in ranks if rank in rows_of])
        return again

    def _place(self, chunk: int, of: _Chunk, rank: int, offset: int) -> int:
        """Return the number of the value that takes a new rank in.

        A value of before a restart may have a later offset: as a rank of it, this one would have come before.
        """
        number, last = of.last, of.values.get(of.last)
        is_open = last is not None and len(last.items) < RANKS_OF_VALUE and len(last.data) < OPEN_BYTES
        if last is None or not is_open or offset <= last.offset:
            of.last = number = number + 1
            of.values[number] = last = Value(self.key_of(chunk, number))
        of.number_of[rank] = number
        last.items[rank] = ""  # until its rows are added
        return number

    def _append(self, chunk: int, of: _Chunk, number: int, new: Sequence[Rows]) -> None:
        value = of.values[number]
        old = unpack_rows(value.data, COLLECTIVE_ROW).rows if value.data else _NOTHING
        if old.nbytes + sum(rows.nbytes for rows in new) <= max(value.tidy_at, TIDY_BYTES):
            self._write(value, old, *new)
            return
        rows = merge(old, stacked([_NOTHING, *new]))
        value.tidy_at = min(2 * rows.nbytes, 3 * LARGE_BYTES)
        self._divide(chunk, of, number, rows)

    def _divide(self, chunk: int, of: _Chunk, number: int, rows: Rows) -> None:
        """Write a value; if it is large, the second half of its ranks as another one.

        That is written first: after a kill in between, its ranks are in both, and rows that are there twice count once.
        """
        value = of.values[number]
        if rows.nbytes > LARGE_BYTES and len(value.items) > 1:
            ranks = sorted(value.items)[len(value.items) // 2 :]
            behind = np.isin(rows["rank"], ranks)
            of.last = other = of.last + 1
            moved = {rank: value.items.pop(rank) for rank in ranks}
            of.values[other] = Value(self.key_of(chunk, other), b"", value.offset, moved, value.tidy_at, value)
            of.number_of.update(dict.fromkeys(ranks, other))
            self._divide(chunk, of, other, rows[behind])
            self._divide(chunk, of, number, rows[~behind])
        else:
            self._write(value, rows)

    def _write(self, value: Value, *rows: Rows) -> None:
        items = ",".join([f'"{rank}":[{item}]' for rank, item in value.items.items()])
        value.data = pack_text(value.offset, b'{"ranks":{%b}}' % items.encode(), *rows)
        self._store[value.name] = value.data
        # A checkpoint writes in the order of the last changes: a half that changes again must not come behind the rest.
        origin = value.origin
        while origin is not None:
            if origin.data:
                self._store[origin.name] = origin.data
            origin = origin.origin

    def of_steps(self, steps: Iterable[int]) -> list[bytes]:
        """Return the values that some steps lie in."""
        chunks = sorted({step // CHUNK_STEPS for step in steps})
        return [
            value.data for chunk in chunks if chunk in self._chunks for value in self._chunks[chunk].values.values()
        ]

    def drop_before(self, step: int) -> None:
        """Delete the chunks that lie wholly before a step."""
        for chunk in [chunk for chunk in self._chunks if (chunk + 1) * CHUNK_STEPS <= step]:
            for value in self._chunks.pop(chunk).values.values():
                self._store.pop(value.name, None)
