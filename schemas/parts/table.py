"""Read the parts of merged records as one table: of one record, or of several of a job in one pass."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch, RowsOf
from drumline.schemas.bounds.limits import MAX_BYTES
from drumline.schemas.columns import Array, filled
from drumline.schemas.errors import BadColumn, BadEnvelope
from drumline.schemas.model import RecordModel
from drumline.schemas.parts.joining import MOST_PARTS
from drumline.schemas.parts.merged import NUMBERS, SHARED, TableLayout, layout
from drumline.schemas.record_table import Ints, RecordTable, json_text

#: Characters of an array as JSON that is kept between records, and how many are kept.
SHORT_TEXT, KEPT_LISTS = 4_096, 256
#: The same of its size alone: each rank of a large job names its communicators, and most records need no more of them.
SIZED_TEXT, KEPT_SIZES = 256, 1 << 15


def _read_list(text: str) -> list[str]:
    """Return the array that a text holds. Raises ValueError for a text that holds no strings that UTF-8 has."""
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("no array of strings")
    "".join(items).encode()  # lone surrogates have no UTF-8
    return items


_short_list = lru_cache(KEPT_LISTS)(_read_list)


def _size(items: list[str]) -> tuple[int, int]:
    return len(items), max(map(len, items), default=0)


@lru_cache(KEPT_SIZES)
def _short_size(text: str) -> tuple[int, int] | None:
    try:
        return _size(_read_list(text))
    except (ValueError, RecursionError):
        return None


class _Columns(dict[str, Array]):
    """Holds the columns of a table; each is made when it is read.

    It refers to no `MergedTable`, which would be freed by a collection of garbage only.
    """

    def __init__(self, values: Ints, of: TableLayout, reader: RecordModel) -> None:
        super().__init__()
        self._values, self._of, self._reader = values, of, reader

    def __missing__(self, name: str) -> Array:
        column = self._of.columns.get(name)
        if column is None:
            self[name] = filled(layout(self._reader).columns[name], self._values.shape[1])
        else:
            self[name] = _typed(self._values[self._of.line[name]], column.dtype)
        return self[name]


class MergedTable(RecordTable):
    """Holds the parts of records as a table: arrays over all parts, and over all rows.

    Attributes beside those of `RecordTable`:
        job, run: of all parts.
        fields: [field, part], values [column, row]: as `layout` describes them.
        lowest, highest: of each field. longest: characters of the longest text, which may be the JSON of an array.

    Read its rows after `bounds.merged_check.is_inside`, or after `check_widths`.
    """

    def __init__(self, records: Sequence[Batch], writer: RecordModel, reader: RecordModel) -> None:
        """Read records of the schema MERGED, of one job and run, whose parts `writer` describes, in the shape of
        `reader`.

        Raises BadEnvelope where the numbers of a record are no such table, or all records together are too large.
        """
        envelope = records[0].envelope
        self.topic, self.writer, self.reader = reader.topic, writer, reader
        self.job, self.run = str(envelope["job"]), str(envelope["run"])
        self.layout = layout(writer)
        fields, values = zip(*map(self._cut, records), strict=True)
        self.sizes, self.rows_of = [of.shape[1] for of in fields], [of.shape[1] for of in values]
        self.parts, self.rows = sum(self.sizes), sum(self.rows_of)
        self.fields: Ints = fields[0] if len(records) == 1 else np.concatenate(fields, axis=1)
        self._set_texts([record.envelope["texts"] for record in records])
        self.lowest, self.highest = self.fields.min(1).tolist(), self.fields.max(1).tolist()
        at = self.layout.line["rows"]
        self.counts: Ints = self.fields[at]
        # None is larger than all of them, so sums do not wrap.
        is_inside = self.lowest[at] >= 0 and self.highest[at] <= self.rows
        if not is_inside or np.add.reduceat(self.counts, _begins(self.sizes)).tolist() != self.rows_of:
            raise BadEnvelope("parts have other numbers of rows", topic=self.topic, field="rows")
        lengths = np.array([len(text) for text in self.texts], np.int64)
        self.longest = int(lengths.max(initial=0))
        used = int(lengths[self.fields[self.layout.texts]].sum()) + self.parts * (len(self.job) + len(self.run))
        if used > MAX_BYTES:  # before a part is made: all of them may have one long text
            detail = f"{used:,} characters in the envelopes of its parts, allowed are {MAX_BYTES:,}"
            raise BadEnvelope(detail, topic=self.topic, field="texts")
        self._lists: dict[int, list[str]] = {}
        self.values = self._summed(values)
        self.columns = _Columns(self.values, self.layout, reader)

    def _cut(self, record: Batch) -> tuple[Ints, Ints]:
        """Return the fields and values of a record."""
        numbers, parts = record.columns["numbers"], int(record.envelope["parts"])
        lines, columns = len(self.layout.kinds), len(self.layout.columns)
        size, width = lines * parts, max(1, columns)
        if not 1 <= parts <= MOST_PARTS or size > len(numbers) or (len(numbers) - size) % width:
            detail = f"{len(numbers)} numbers are no table of {parts} parts"
            raise BadEnvelope(detail, topic=self.topic, field="parts")
        rows = (len(numbers) - size) // width
        return numbers[:size].reshape(lines, parts), numbers[size:].reshape(columns, rows)

    def _set_texts(self, texts_of: Sequence[Sequence[str]]) -> None:
        """Set the texts of all records, each once, and the indices of them in the fields."""
        counts, lines = [len(texts) for texts in texts_of], self.layout.texts
        indices = self.fields[lines]
        if (indices < 0).any() or (indices >= np.repeat(counts, self.sizes)).any():
            raise BadEnvelope("an index beyond the texts", topic=self.topic, field="texts")
        self.texts = texts_of[0]
        if len(texts_of) > 1:
            known: dict[str, int] = {}
            places = [known.setdefault(text, len(known)) for texts in texts_of for text in texts]
            indices += np.repeat(_begins(counts), self.sizes)
            self.texts, self.fields[lines] = list(known), np.array(places, np.int64)[indices]

    def _summed(self, values: Sequence[Ints]) -> Ints:
        """Return the values of all records side by side, where a column has differences their sums; read-only."""
        delta, together = self.layout.delta, values[0] if len(values) == 1 else np.concatenate(values, axis=1)
        if len(delta) and self.rows:
            together = together.copy() if len(values) == 1 else together
            sums = np.cumsum(together[delta], axis=1)
            if len(values) > 1:  # each record begins anew
                begins = np.array(_begins(self.rows_of))
                sums -= np.repeat(np.where(begins > 0, sums[:, begins - 1], 0), self.rows_of, axis=1)
            together[delta] = sums
        together.flags.writeable = False
        return together

    def only(self, of: Ints) -> MergedTable:
        """Return some parts, rising, as a table that keeps nothing of the others in memory but texts."""
        result, rows = copy(self), np.isin(self.part_of, of)
        for name in ("ranks", "part_of", "ends", "record_of", "_envelopes"):
            result.__dict__.pop(name, None)
        result.fields, result.counts = self.fields[:, of], self.counts[of]
        result.parts, result.rows = len(of), int(result.counts.sum())
        sizes = np.bincount(np.array(self.record_of)[of], minlength=len(self.sizes))
        rows_of = np.bincount(np.array(self.record_of)[of], result.counts, len(self.sizes)).astype(int)
        result.sizes, result.rows_of = sizes[sizes > 0].tolist(), rows_of[sizes > 0].tolist()
        result.values = self.values[:, rows]
        result.values.flags.writeable = False
        result.columns = _Columns(result.values, self.layout, self.reader)
        return result

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

    def text(self, name: str, of: Ints | slice = slice(None)) -> list[str]:
        """Return a text of the envelope, of each part, or of some; of an array, its JSON."""
        if name in self.layout.kinds:
            return [self.texts[index] for index in self.fields[self.layout.line[name]][of].tolist()]
        value = {"job": self.job, "run": self.run}.get(name, self.reader.defaults.get(name))
        return [value if isinstance(value, str) else json_text(value)] * len(self.counts[of])

    def has_text(self, name: str, text: str) -> NDArray[np.bool_]:
        """Return of each part whether a text of the envelope is this one."""
        if name in self.layout.kinds:
            matches = np.array([known == text for known in self.texts], bool)
            of_parts: NDArray[np.bool_] = matches[self.fields[self.layout.line[name]]]
            return of_parts
        return np.full(self.parts, self.reader.defaults[name] == text)

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

    def size_of_list(self, index: int) -> tuple[int, int]:
        """Return the number of items of an array, and the characters of its longest one. Raises as `list_of` does."""
        text = self.texts[index]
        known = _short_size(text) if len(text) <= SIZED_TEXT else None
        return known or _size(self.list_of(index))  # which raises for a text that holds none

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

    def batches(self) -> list[Batch]:
        """Return all parts as the batches that they were, of the current schema; they share arrays of texts, which are
        not to be changed, and rows (see `RowsOf`). Raises BadEnvelope for a text that should be JSON.
        """
        assert self.writer is self.reader
        of_parts: list[Iterable[Any]] = [repeat(self.job), repeat(self.run)]
        for name, kind in self.layout.kinds.items():
            of_parts.append(
                self.number(name).tolist()
                if kind in NUMBERS
                else self.text(name)
                if kind == "string"
                else self.lists(name)
            )
        names, rows = (*SHARED, *self.layout.kinds), pairwise(self.ends)
        return [
            Batch(self.topic, dict(zip(names, envelope, strict=True)), RowsOf(self.columns, begin, end))
            for envelope, (begin, end) in zip(zip(*of_parts, strict=False), rows, strict=True)
        ]

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
            if kind in NUMBERS:
                envelope[name] = value
            elif kind == "string":
                envelope[name] = self.texts[value]
            else:
                envelope[name] = _copied(self.list_of(value))
        return envelope


def _begins(sizes: Sequence[int]) -> list[int]:
    """Return where each of the pieces of these sizes begins, one behind the other."""
    return [*accumulate(sizes[:-1], initial=0)]


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
