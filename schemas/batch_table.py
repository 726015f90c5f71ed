"""Read many batches of one schema as one table: what a column costs, it costs once for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from drumline.schemas.batch import Batch, RowsOf, decode_fields
from drumline.schemas.columns import Array, Column
from drumline.schemas.errors import BadColumn
from drumline.schemas.model import RecordModel


class BatchTable:
    """Holds batches side by side.

    Attributes:
        topic: of all batches. envelopes: of each.
        counts: rows of each. begins: its first row.
        columns: name -> values of all rows, read-only; as in the batches, a dictionary column has indices of its batch.
    """

    def __init__(self, schema: RecordModel, bodies: Sequence[bytes], start: int) -> None:
        """Read bodies, from byte `start` of each, that were written with `schema`; see `decode`.

        Raises BadEnvelope or BadColumn for a body that is no batch. The caller checks their bounds.
        """
        self.topic = schema.topic
        self.envelopes = [decode_fields(schema, body, start) for body in bodies]
        self.counts: list[int] = [envelope["rows"] for envelope in self.envelopes]
        self.begins = [*accumulate(self.counts[:-1], initial=0)]
        self.rows = sum(self.counts)
        self.columns = {column.name: self._joined(column) for column in schema.columns}

    def _joined(self, column: Column) -> Array:
        """Take a column out of the envelopes, and return the values of all rows."""
        pieces, size = [envelope.pop(column.name) for envelope in self.envelopes], column.dtype.itemsize
        if any(len(piece) != count * size for piece, count in zip(pieces, self.counts, strict=True)):
            raise BadColumn("not as many bytes as rows need", topic=self.topic, field=column.name)
        array: Array = np.frombuffer(b"".join(pieces), column.dtype)
        if not self.rows:
            return array
        if column.delta:
            sums = np.cumsum(array, dtype=column.dtype)
            begins = np.array(self.begins)
            before = np.where(begins > 0, sums[begins - 1], sums.dtype.type(0))  # each batch begins at 0
            if column.base:
                bases = np.array([envelope["base_time_ns"] for envelope in self.envelopes]).astype(column.dtype)
                before = before - bases
            array = sums - np.repeat(before, self.counts)
            array.flags.writeable = False
        if column.dictionary:
            ends = [len(envelope[column.dictionary]) for envelope in self.envelopes]
            if (array >= np.repeat(ends, self.counts)).any():
                raise BadColumn(f"an index beyond the {column.dictionary}", topic=self.topic, field=column.name)
        return array

    def batches(self) -> list[Batch]:
        """Return all batches; they share rows (see `RowsOf`)."""
        return [
            Batch(self.topic, envelope, RowsOf(self.columns, begin, begin + count))
            for envelope, begin, count in zip(self.envelopes, self.begins, self.counts, strict=True)
        ]

    def batch(self, number: int) -> Batch:
        """Return a batch, from 0."""
        inside = slice(self.begins[number], self.begins[number] + self.counts[number])
        return Batch(
            self.topic, self.envelopes[number], {name: column[inside] for name, column in self.columns.items()}
        )
