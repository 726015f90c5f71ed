"""Define a batch (one Kafka record, columns in memory), and encode it to Avro and back."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
import numpy as np

from drumline.schemas.avro_read import read_fields
from drumline.schemas.columns import Array, Column, filled, fit, pack, unpack
from drumline.schemas.confluent import avro_length
from drumline.schemas.envelope import checked, within_int32
from drumline.schemas.errors import BadColumn, BadEnvelope, Unencodable
from drumline.schemas.model import RecordModel

#: More rows than any producer may put into a batch (they flush at 4,096); a bound on what a bad record can allocate.
MAX_ROWS = 1 << 20


@dataclass(slots=True)
class Batch:
    """Holds the rows of one Kafka record, stored by column.

    `envelope`: all Avro fields but columns; dictionaries among them are list[str]. `columns`: name -> 1-D array of
    length envelope["rows"], dtypes as in the schema (dictionary columns hold indices). `content`: checksum of the
    record's value where the reader compares batches, 0 = not computed.
    """

    topic: str
    envelope: dict[str, Any]
    columns: dict[str, Array] = field(default_factory=dict)
    content: int = field(default=0, compare=False)

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return int(self.envelope["rows"])

    def strings(self, column: str, dictionary: str) -> Array:
        """Return the text of a dictionary column: object array of str, one per row."""
        texts = np.array([*self.envelope[dictionary], ""], dtype=object)
        return texts[self.columns[column]]


class RowsOf(dict[str, Array]):
    """Holds the columns of rows begin..end-1 of a table; each is made when it is read. `of`: the table's columns.

    Readers of many batches of a table take its columns at once.
    """

    __slots__ = ("begin", "end", "of")

    def __init__(self, of: Mapping[str, Array], begin: int, end: int) -> None:
        super().__init__()
        self.of, self.begin, self.end = of, begin, end

    def __missing__(self, name: str) -> Array:
        self[name] = rows = self.of[name][self.begin : self.end]
        return rows

    def get(self, name: str, default: Any = None, /) -> Any:
        """Return a column, read before or not."""
        try:
            return self[name]
        except KeyError:
            return default


def dictionary(values: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return the distinct values in order of appearance, and the index of each value in them."""
    distinct: dict[str, int] = {}
    index = [distinct.setdefault(value, len(distinct)) for value in values]
    return list(distinct), index


def max_rows(model: RecordModel) -> int:
    """Return the largest number of rows that a record may have; a record without columns is one row, or none."""
    return MAX_ROWS if model.columns else 1


def encode(model: RecordModel, batch: Batch, prefix: bytes = b"") -> bytes:
    """Return `prefix` and the Avro body. Columns that the batch lacks are written as their fill value.

    Raises Unencodable, naming the field, where `decode` would not return the same batch: unknown names, unequal
    lengths, values outside the dtype or the dictionary, floats in an integer column.
    """
    record = checked(model, batch.envelope)
    rows = record["rows"]
    if not 0 <= rows <= max_rows(model):
        raise Unencodable(f"{rows} rows, allowed are 0..{max_rows(model)}", topic=model.topic, field="rows")
    if stray := batch.columns.keys() - {column.name for column in model.columns}:
        raise Unencodable("no such column in the schema", topic=model.topic, field=", ".join(sorted(stray)))
    # A record is its fields in order (Avro 1.12, "Complex types: records"). fastavro writes the small ones; columns are
    # joined to them in one copy, three times as fast as through its growing buffer.
    chunks: list[Any] = [prefix]
    for part in model.parts:
        if isinstance(part, Column):
            array = _column(model, part, batch, record)
            packed = pack(part, array, record["base_time_ns"])
            chunks += (avro_length(packed.nbytes), packed)
        else:
            out = BytesIO()
            fastavro.schemaless_writer(out, part, record)
            chunks.append(out.getvalue())
    return b"".join(chunks)


def _column(model: RecordModel, column: Column, batch: Batch, record: dict[str, Any]) -> Array:
    values = batch.columns.get(column.name)
    array = filled(column, record["rows"]) if values is None else fit(column, values, model.topic)
    if len(array) != record["rows"]:
        detail = f"{len(array)} values in a batch of {record['rows']} rows"
        raise Unencodable(detail, topic=model.topic, field=column.name)
    if column.dictionary and (fault := _outside(column, array, record)):
        raise Unencodable(fault, topic=model.topic, field=column.name)
    return array


def decode(
    writer: RecordModel, body: bytes, reader: RecordModel | None = None, start: int = 0, *, bounded: bool = False
) -> Batch:
    """Read a body, from byte `start`, written with `writer`, in the shape of `reader` (default: the same).

    `reader` must be able to read `writer` (compatibility.py). `bounded`: the caller checks the batch's bounds, and so
    its `int` fields, whose bounds lie within 32 bits. Columns are read-only. Raises only BadEnvelope (Avro does not
    decode, value out of range, trailing bytes) or BadColumn (length, dictionary index).
    """
    target = reader or writer
    topic, record = target.topic, _read(writer, target, body, start, bounded=bounded)
    rows = record["rows"]
    columns: dict[str, Array] = {}
    written = target.fields if target is writer else writer.fields
    for column in target.columns:
        data = record.pop(column.name)
        if column.name not in written:  # added after this batch was written
            columns[column.name] = filled(column, rows)
            continue
        columns[column.name] = array = unpack(column, data, rows, record["base_time_ns"], topic)
        if column.dictionary and (fault := _outside(column, array, record)):
            raise BadColumn(fault, topic=topic, field=column.name)
    return Batch(topic, record, columns)


def decode_fields(schema: RecordModel, body: bytes, start: int) -> dict[str, Any]:
    """Return the fields of a body that was written with `schema`, columns as bytes; the caller checks the bounds.

    Raises BadEnvelope.
    """
    return _read(schema, schema, body, start, bounded=True)


def _read(writer: RecordModel, target: RecordModel, body: bytes, start: int, *, bounded: bool) -> dict[str, Any]:
    topic, record = target.topic, read_fields(writer, body, start, target.topic)
    if target is not writer:
        record = {n: record[n] if n in record else copy.copy(target.defaults[n]) for n in target.fields}
    if not bounded and (wide := within_int32(target, record)) is not None:
        raise BadEnvelope("value outside Avro's int", topic=topic, field=wide)
    rows = record["rows"]
    if not 0 <= rows <= max_rows(target):
        raise BadEnvelope(f"{rows} rows, allowed are 0..{max_rows(target)}", topic=topic, field="rows")
    return record


def _outside(column: Column, array: Array, record: dict[str, Any]) -> str:
    """Return the error in a dictionary column's indices, or ""."""
    size = len(record[column.dictionary])
    if array.size and (largest := int(array.max())) >= size:
        return f"index {largest} into {size} {column.dictionary}"
    return ""
