"""The shape in which records are read: their batches side by side, so that a column costs once for all of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch, RowsOf, decode_fields
from drumline.schemas.columns import Array, Column
from drumline.schemas.errors import BadColumn
from drumline.schemas.model import RecordModel, model

Ints = NDArray[np.int64]


class RecordTable(ABC):
    """Holds the batches of one topic's records as parts: arrays over all parts, and over all rows.

    Attributes:
        topic: of all parts.
        parts, rows: numbers of parts, and of rows of all of them.
        sizes: parts of each record, rows_of: its rows.
        counts: rows of each part.
        columns: name -> values of all rows, read-only, in the dtype of the topic's current schema; a dictionary column
            has indices of its part.
    """

    topic: str
    parts: int
    rows: int
    sizes: Sequence[int]
    rows_of: Sequence[int]
    counts: Ints
    columns: Mapping[str, Array]

    @abstractmethod
    def number(self, name: str) -> Ints:
        """Return a number of the envelope, of each part."""

    @abstractmethod
    def text(self, name: str, of: Ints | slice = slice(None)) -> list[str]:
        """Return a text of the envelope, of each part, or of some; of an array, its JSON."""

    @abstractmethod
    def lists(self, name: str) -> list[list[str]]:
        """Return an array of the envelope, of each part; not to be changed. Raises BadEnvelope for no array."""

    @abstractmethod
    def has_text(self, name: str, text: str) -> NDArray[np.bool_]:
        """Return of each part whether a text of the envelope is this one."""

    @abstractmethod
    def only(self, of: Ints) -> RecordTable:
        """Return some parts, rising, as a table that keeps no rows of the others in memory."""

    @abstractmethod
    def batch(self, part: int) -> Batch:
        """Return a part, from 0, as the batch that it was. Raises BadEnvelope for a text that should be JSON."""

    @abstractmethod
    def batches(self) -> list[Batch]:
        """Return all parts as the batches that they were, of the current schema; they share arrays of texts, which are
        not to be changed, and rows (see `RowsOf`). Raises BadEnvelope for a text that should be JSON.
        """

    @cached_property
    def ranks(self) -> Ints:
        """Return the rank of each row."""
        return self.number("rank")[self.part_of]

    @cached_property
    def part_of(self) -> Ints:
        """Return the part of each row, from 0."""
        return np.repeat(np.arange(self.parts), self.counts)

    @cached_property
    def ends(self) -> list[int]:
        """Return the number of rows up to each part, and with the last one."""
        return [0, *np.cumsum(self.counts).tolist()]

    @cached_property
    def record_of(self) -> list[int]:
        """Return the number of each part's record, from 0."""
        numbers: list[int] = np.repeat(np.arange(len(self.sizes)), self.sizes).tolist()
        return numbers


class BatchTable(RecordTable):
    """Holds records that are batches, or batches that were made, of any jobs.

    `envelopes`: of each. `contents`: checksum of each one's value, 0 = not computed.
    """

    def __init__(self, topic: str, envelopes: Sequence[dict[str, Any]], columns: Mapping[str, Array]) -> None:
        self.topic, self.envelopes, self.columns = topic, envelopes, columns
        self.counts = np.array([envelope["rows"] for envelope in envelopes], np.int64)
        self.parts, self.rows = len(envelopes), int(self.counts.sum())
        self.sizes, self.rows_of = [1] * self.parts, self.counts.tolist()
        self.contents: Sequence[int] = [0] * self.parts

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> BatchTable:
        """Return batches of one topic, with the same columns, as a table."""
        names = batches[0].columns
        columns = names if len(batches) == 1 else {
            name: np.concatenate([batch.columns[name] for batch in batches]) for name in names
        }  # fmt: skip
        table = cls(batches[0].topic, [batch.envelope for batch in batches], columns)
        table.contents = [batch.content for batch in batches]
        return table

    @classmethod
    def read(cls, schema: RecordModel, bodies: Sequence[bytes], start: int) -> BatchTable:
        """Return bodies, from byte `start` of each, that were written with `schema`; see `batch.decode`.

        Raises BadEnvelope or BadColumn for a body that is no batch. The caller checks their bounds.
        """
        envelopes = [decode_fields(schema, body, start) for body in bodies]
        columns = {column.name: _joined(schema.topic, column, envelopes) for column in schema.columns}
        return cls(schema.topic, envelopes, columns)

    def number(self, name: str) -> Ints:
        """Return a number of the envelope, of each part."""
        return np.array(self._values(name), np.int64)

    def text(self, name: str, of: Ints | slice = slice(None)) -> list[str]:
        """Return a text of the envelope, of each part, or of some; of an array, its JSON."""
        values = self._values(name)
        chosen = values[of] if isinstance(of, slice) else [values[part] for part in of.tolist()]
        return [value if isinstance(value, str) else json_text(value) for value in chosen]

    def lists(self, name: str) -> list[list[str]]:
        """Return an array of the envelope, of each part; not to be changed."""
        return self._values(name)

    def has_text(self, name: str, text: str) -> NDArray[np.bool_]:
        """Return of each part whether a text of the envelope is this one."""
        return np.array([value == text for value in self._values(name)], bool)

    def _values(self, name: str) -> list[Any]:
        """Return a field of each envelope, or its default."""
        default = model(self.topic).defaults.get(name)
        return [envelope.get(name, default) for envelope in self.envelopes]

    def only(self, of: Ints) -> BatchTable:
        """Return some parts, rising, as a table that keeps no rows of the others in memory."""
        rows = np.isin(self.part_of, of)
        columns = {name: column[rows] for name, column in self.columns.items()}
        table = BatchTable(self.topic, [self.envelopes[part] for part in of.tolist()], columns)
        table.contents = [self.contents[part] for part in of.tolist()]
        return table

    def batch(self, part: int) -> Batch:
        """Return a part, from 0, as the batch that it was."""
        inside = slice(self.ends[part], self.ends[part + 1])
        columns = {name: column[inside] for name, column in self.columns.items()}
        return Batch(self.topic, self.envelopes[part], columns, self.contents[part])

    def batches(self) -> list[Batch]:
        """Return all parts as the batches that they were; they share rows (see `RowsOf`)."""
        return [
            Batch(self.topic, envelope, RowsOf(self.columns, begin, begin + count), content)
            for envelope, begin, count, content in zip(
                self.envelopes, self.ends[:-1], self.rows_of, self.contents, strict=True
            )
        ]


def json_text(value: Any) -> str:
    """Return an array as JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _joined(topic: str, column: Column, envelopes: Sequence[dict[str, Any]]) -> Array:
    """Take a column out of the envelopes, and return the values of all rows."""
    pieces, size = [envelope.pop(column.name) for envelope in envelopes], column.dtype.itemsize
    counts = [envelope["rows"] for envelope in envelopes]
    if any(len(piece) != count * size for piece, count in zip(pieces, counts, strict=True)):
        raise BadColumn("not as many bytes as rows need", topic=topic, field=column.name)
    array: Array = np.frombuffer(b"".join(pieces), column.dtype)
    if not len(array):
        return array
    if column.delta:
        sums = np.cumsum(array, dtype=column.dtype)
        begins = np.array([*accumulate(counts[:-1], initial=0)])
        before = np.where(begins > 0, sums[begins - 1], sums.dtype.type(0))  # each batch begins at 0
        if column.base:
            bases = np.array([envelope["base_time_ns"] for envelope in envelopes]).astype(column.dtype)
            before = before - bases
        array = sums - np.repeat(before, counts)
        array.flags.writeable = False
    if column.dictionary:
        ends = [len(envelope[column.dictionary]) for envelope in envelopes]
        if (array >= np.repeat(ends, counts)).any():
            raise BadColumn(f"an index beyond the {column.dictionary}", topic=topic, field=column.name)
    return array
