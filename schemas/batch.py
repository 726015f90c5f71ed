"""A batch: one Kafka record, columns in memory. The codec between it and the Avro body."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import fastavro
import numpy as np

from drumline.schemas.columns import Array, pack, unpack
from drumline.schemas.errors import BadColumn, BadEnvelope
from drumline.schemas.model import RecordModel

#: More rows than any producer may put into a batch (they flush at 4,096); a bound on what a bad record can allocate.
MAX_ROWS = 1 << 20


@dataclass(slots=True)
class Batch:
    """`envelope`: all Avro fields but columns, dictionaries among them as list[str]. `columns`: name -> 1-D array,
    all of length envelope["rows"], dtypes as in the schema (dictionary columns hold indices)."""

    topic: str
    envelope: dict[str, Any]
    columns: dict[str, Array] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.envelope["rows"])

    def strings(self, column: str, dictionary: str) -> Array:
        """The text of a dictionary column: object array of str, one a row."""
        words = np.array([*self.envelope[dictionary], ""], dtype=object)
        return words[self.columns[column]]


def encode(model: RecordModel, batch: Batch) -> bytes:
    """The Avro body. Columns missing from the batch are written as zeros. Raises BadColumn on unequal lengths."""
    envelope = batch.envelope
    base = int(envelope.get("base_time_ns", 0))
    rows = int(envelope["rows"])
    record: dict[str, Any] = dict(envelope)
    for column in model.columns:
        values = batch.columns.get(column.name)
        if values is None:
            values = np.zeros(rows, column.dtype)
        if len(values) != rows:
            raise BadColumn(f"{len(values)} values in a batch of {rows} rows", topic=model.topic, field=column.name)
        record[column.name] = pack(column, values, base)
    out = BytesIO()
    fastavro.schemaless_writer(out, model.parsed, record)
    return out.getvalue()


def decode(writer: RecordModel, body: bytes, reader: RecordModel | None = None) -> Batch:
    """Read a body written with `writer`, in the shape of `reader` (default: the same).

    Raises BadEnvelope (Avro does not decode, rows out of range, trailing bytes) or BadColumn (length, index).
    """
    target = reader or writer
    stream = BytesIO(body)
    try:
        record: Any = fastavro.schemaless_reader(stream, writer.parsed, target.parsed)
    except Exception as error:  # fastavro raises whatever the bytes lead it to
        raise BadEnvelope(f"Avro body does not decode ({type(error).__name__})", topic=target.topic) from None
    if stream.tell() != len(body):
        raise BadEnvelope(f"{len(body) - stream.tell()} bytes after the record", topic=target.topic)
    rows = record["rows"]
    if not 0 <= rows <= MAX_ROWS:
        raise BadEnvelope(f"{rows} rows, allowed are 0..{MAX_ROWS}", topic=target.topic, field="rows")
    base = record["base_time_ns"]
    columns: dict[str, Array] = {}
    written = {column.name for column in writer.columns}
    for column in target.columns:
        data = record.pop(column.name)
        if column.name not in written:  # added after this batch was written: its default
            columns[column.name] = np.zeros(rows, column.dtype)
            continue
        columns[column.name] = unpack(column, data, rows, base, target.topic)
        if column.dictionary and rows:
            largest = int(columns[column.name].max())
            if largest >= len(record[column.dictionary]):
                raise BadColumn(
                    f"index {largest} into {len(record[column.dictionary])} {column.dictionary}",
                    topic=target.topic,
                    field=column.name,
                )
    return Batch(target.topic, record, columns)
