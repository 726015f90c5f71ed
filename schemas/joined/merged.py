"""Merge the batches of one host in one table, which consumers decode in one pass over all of its parts.

A large job has many ranks that send a few rows each: to decode a batch costs more than its rows do. A table has the
envelope fields of all parts side by side, then the columns of all parts. Parts keep all that they have; each can be
encoded again to the bytes that were merged. docs/reference/record-format.md describes the record.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.limits import MAX_BYTES
from drumline.schemas.columns import Array, Column, filled
from drumline.schemas.errors import BadColumn, BadEnvelope
from drumline.schemas.joined.parts import MOST_PARTS
from drumline.schemas.model import RecordModel

#: Name of the schema; no topic has it.
MERGED = "gpu.merged.v1"
#: Envelope fields that all parts share.
SHARED = ("job", "run")
#: Characters of an array as JSON that is kept between records, and how many are kept.
SHORT_TEXT, KEPT_LISTS = 4_096, 256
#: Envelope types whose values stand in the table as they are.
_NUMBERS = frozenset({"int", "long"})
Ints = NDArray[np.int64]


class TableLayout(NamedTuple):
    """Describes the table of one schema.

    Attributes:
        kinds: envelope field -> its type, in the order of the table's first lines.
        line: envelope field or column -> its line, of the fields or of the columns.
        texts: lines of the fields that are indices of texts. lists: those of them whose text is JSON.
        columns: by name, in the order of the last lines. delta: lines of the columns that are differences.
    """

    kinds: dict[str, str]
    line: dict[str, int]
    texts: list[int]
    lists: list[int]
    columns: dict[str, Column]
    delta: Ints


_layouts: dict[str, TableLayout] = {}


def layout(schema: RecordModel) -> TableLayout:
    """Return the layout of a table of parts with a schema."""
    known = _layouts.get(schema.fingerprint)
    if known is None:
        kinds = {name: kind for name, kind in schema.envelope.items() if name not in SHARED}
        texts = [line for line, kind in enumerate(kinds.values()) if kind not in _NUMBERS]
        lists = [line for line, kind in enumerate(kinds.values()) if kind not in _NUMBERS and kind != "string"]
        delta = [line for line, column in enumerate(schema.columns) if column.delta]
        lines = {name: line for line, name in enumerate(kinds)}
        lines |= {column.name: line for line, column in enumerate(schema.columns)}
        columns = {column.name: column for column in schema.columns}
        known = TableLayout(kinds, lines, texts, lists, columns, np.array(delta, np.int64))
        _layouts[schema.fingerprint] = known
    return known


def merged(schema: RecordModel, number: int, batches: Sequence[Batch]) -> Batch:
    """Return the record of 1 to MOST_PARTS batches of one job and run, all with a schema and its id."""
    of, texts = layout(schema), dict[str, int]()
    fields = np.empty((len(of.kinds), len(batches)), np.int64)
    for part, batch in enumerate(batches):
        fields[:, part] = [
            value if kind in _NUMBERS else texts.setdefault(value if kind == "string" else _as_text(value), len(texts))
            for kind, value in ((kind, batch.envelope[name]) for name, kind in of.kinds.items())
        ]
    values = np.empty((len(of.columns), sum(batch.rows for batch in batches)), np.int64)
    for line, column in enumerate(schema.columns):
        values[line] = _as_integers(np.concatenate([batch.columns[column.name] for batch in batches]))
    if values.shape[1]:
        values[of.delta, 1:] = np.diff(values[of.delta], axis=1)
    numbers = np.concatenate([fields.ravel(), values.ravel()])
    head = {name: batches[0].envelope[name] for name in SHARED}
    head |= {"rows": len(numbers), "schema": number, "parts": len(batches), "texts": list(texts)}
    return Batch(MERGED, head, {"numbers": numbers})


def _as_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _as_integers(values: Array) -> Array:
    """Return 64 bits of each value, from which `MergedParts` makes it again."""
    if values.dtype.kind == "f":
        return values.astype(np.float64).view(np.int64)
    return values.view(np.int64) if values.dtype == np.uint64 else values


def _read_list(text: str) -> list[str]:
    """Return the array that a text holds. Raises ValueError for a text that holds no strings that UTF-8 has."""
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("no array of strings")
    "".join(items).encode()  # lone surrogates have no UTF-8
    return items


_short_list = lru_cache(KEPT_LISTS)(_read_list)


class _Columns(dict[str, Array]):
    """Holds the columns of a table; each is made when it is read."""

    def __init__(self, parts: MergedParts) -> None:
        super().__init__()
        self._parts = parts

    def __missing__(self, name: str) -> Array:
        self[name] = column = self._parts.column(name)
        return column


class MergedParts:
    """Holds the parts of a record as a table: arrays over all parts, and over all rows.

    Attributes:
        topic: of all parts. job, run: of all parts.
        parts, rows: numbers of parts, and of rows of all of them.
        counts: rows of each part.
        fields: [field, part], values [column, row]: as `layout` describes them.
        lowest, highest: of each field.
        columns: name -> values of all rows, in the dtype of the topic's current schema.

    Read its rows after `bounds.merged_check.is_inside`, or after `check_widths`.
    """

    def __init__(self, record: Batch, writer: RecordModel, reader: RecordModel) -> None:
        """Read a record of the schema MERGED, whose parts `writer` describes, in the shape of `reader`.

        Raises BadEnvelope for a record whose numbers are no such table.
        """
        envelope, numbers = record.envelope, record.columns["numbers"]
        self.topic, self.writer, self.reader = reader.topic, writer, reader
        self.job, self.run = str(envelope["job"]), str(envelope["run"])
        self.layout, self.parts, self.texts = layout(writer), int(envelope["parts"]), envelope["texts"]
        size = len(self.layout.kinds) * self.parts
        width = max(1, len(self.layout.columns))
        if not 1 <= self.parts <= MOST_PARTS or size > len(numbers) or (len(numbers) - size) % width:
            detail = f"{len(numbers)} numbers are no table of {self.parts} parts"
            raise BadEnvelope(detail, topic=self.topic, field="parts")
        self.rows = (len(numbers) - size) // width
        self.fields: Ints = numbers[:size].reshape(len(self.layout.kinds), self.parts)
        self.lowest, self.highest = self.fields.min(1).tolist(), self.fields.max(1).tolist()
        at = self.layout.line["rows"]
        self.counts: Ints = self.fields[at]
        if self.lowest[at] < 0 or sum(self.counts.tolist()) != self.rows:
            raise BadEnvelope("parts have other numbers of rows", topic=self.topic, field="rows")
        if any(self.lowest[at] < 0 or self.highest[at] >= len(self.texts) for at in self.layout.texts):
            raise BadEnvelope("an index beyond the texts", topic=self.topic, field="texts")
        lengths = np.array([len(text) for text in self.texts], np.int64)
        used = int(lengths[self.fields[self.layout.texts]].sum()) + self.parts * (len(self.job) + len(self.run))
        if used > MAX_BYTES:  # before a part is made: all of them may have one long text
            detail = f"{used:,} characters in the envelopes of its parts, allowed are {MAX_BYTES:,}"
            raise BadEnvelope(detail, topic=self.topic, field="texts")
        self._lists: dict[int, list[str]] = {}
        values: Ints = numbers[size:].reshape(len(self.layout.columns), self.rows)
        if len(self.layout.delta) and self.rows:
            values = values.copy()
            values[self.layout.delta] = np.cumsum(values[self.layout.delta], axis=1)
            values.flags.writeable = False
        self.values = values
        self.columns = _Columns(self)

    def check_widths(self) -> None:
        """Raise BadColumn for a value that the dtype of its column does not hold: it would be cut."""
        for line, column in enumerate(self.writer.columns if self.rows else ()):
            values, dtype = self.values[line], column.dtype
            if dtype.itemsize < values.itemsize and dtype.kind != "f":
                low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
                if not low <= int(values.min()) <= int(values.max()) <= high:
                    raise BadColumn(f"a value that {dtype} cannot hold", topic=self.topic, field=column.name)

    def number(self, name: str) -> Ints:
        """Return a number of the envelope, of each part."""
        if name in self.layout.kinds:
            of_parts: Ints = self.fields[self.layout.line[name]]
            return of_parts
        return np.full(self.parts, self.reader.defaults[name], np.int64)

    def text(self, name: str) -> list[str]:
        """Return a text of the envelope, of each part; of an array, its JSON."""
        if name in self.layout.kinds:
            return [self.texts[index] for index in self.fields[self.layout.line[name]].tolist()]
        value = self.reader.defaults[name]
        return [value if isinstance(value, str) else _as_text(value)] * self.parts

    def lists(self, name: str) -> list[list[str]]:
        """Return an array of the envelope, of each part; not to be changed. Raises as `list_of` does."""
        if name in self.layout.kinds:
            return [self.list_of(index) for index in self.fields[self.layout.line[name]].tolist()]
        return [self.reader.defaults[name]] * self.parts

    def list_of(self, index: int) -> list[str]:
        """Return the array that a text holds. Raises BadEnvelope for a text that holds no array of strings."""
        known = self._lists.get(index)
        if known is None:
            text = self.texts[index]
            try:
                known = _short_list(text) if len(text) <= SHORT_TEXT else _read_list(text)
            except (ValueError, RecursionError):
                raise BadEnvelope("a text that is no array of strings", topic=self.topic, field="texts") from None
            self._lists[index] = known
        return known

    def column(self, name: str) -> Array:
        """Return a column of all rows, part by part; read-only."""
        column = self.layout.columns.get(name)
        if column is None:
            return filled(layout(self.reader).columns[name], self.rows)
        return _typed(self.values[self.layout.line[name]], column.dtype)

    @cached_property
    def ranks(self) -> Ints:
        """Return the rank of each row."""
        return np.repeat(self.number("rank"), self.counts)

    @cached_property
    def ends(self) -> list[int]:
        """Return the number of rows up to each part, and with the last one."""
        return [0, *np.cumsum(self.counts).tolist()]

    @cached_property
    def _envelopes(self) -> list[list[int]]:
        envelopes: list[list[int]] = self.fields.T.tolist()
        return envelopes

    def batch(self, part: int) -> Batch:
        """Return a part, from 0, as the batch that it was. Raises BadEnvelope for a text that should be JSON."""
        begin, end = self.ends[part], self.ends[part + 1]
        columns = {column.name: self.columns[column.name][begin:end] for column in self.reader.columns}
        envelope = self._envelope(part)
        if self.writer is not self.reader:
            kept = {name: value for name, value in envelope.items() if name in self.reader.envelope}
            missing = self.reader.envelope.keys() - envelope.keys()
            envelope = {**kept, **{name: _copied(self.reader.defaults[name]) for name in missing}}
        return Batch(self.topic, envelope, columns)

    def written(self, part: int) -> Batch:
        """Return a part, from 0, with the fields and columns that were written. Raises BadEnvelope, see `batch`."""
        begin, end = self.ends[part], self.ends[part + 1]
        columns = {
            column.name: _typed(self.values[line, begin:end], column.dtype)
            for line, column in enumerate(self.writer.columns)
        }
        return Batch(self.topic, self._envelope(part), columns)

    def _envelope(self, part: int) -> dict[str, Any]:
        envelope: dict[str, Any] = {"job": self.job, "run": self.run}
        for (name, kind), value in zip(self.layout.kinds.items(), self._envelopes[part], strict=True):
            if kind in _NUMBERS:
                envelope[name] = value
            elif kind == "string":
                envelope[name] = self.texts[value]
            else:
                envelope[name] = _copied(self.list_of(value))
        return envelope


def _typed(values: Ints, dtype: np.dtype[Any]) -> Array:
    """Return the values of a line in the dtype of its column, read-only; see `check_widths`."""
    if dtype == values.dtype:
        return values
    if dtype.kind == "f":
        values = values.view(np.float64)
    elif dtype.itemsize == values.itemsize:
        return values.view(dtype)
    typed = values.astype(dtype, copy=False)
    typed.flags.writeable = False
    return typed


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, list | dict) else value
