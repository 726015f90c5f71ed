"""Merge the batches of one host in one table, which consumers decode in one pass over all of its parts.

A large job has many ranks that send a few rows each: to decode a batch costs more than its rows do. A table has the
envelope fields of all parts side by side, then the columns of all parts. Parts keep all that they have; each can be
encoded again to the bytes that were merged. docs/reference/record-format.md describes the record.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array, Column
from drumline.schemas.envelope import within_int32
from drumline.schemas.model import RecordModel
from drumline.schemas.record_table import BatchTable, Ints, json_text

#: Name of the schema; no topic has it.
MERGED = "gpu.merged.v1"
#: Envelope fields that all parts share.
SHARED = ("job", "run")
#: Envelope types whose values stand in the table as they are.
NUMBERS = frozenset({"int", "long"})


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
        texts = [line for line, kind in enumerate(kinds.values()) if kind not in NUMBERS]
        lists = [line for line, kind in enumerate(kinds.values()) if kind not in NUMBERS and kind != "string"]
        delta = [line for line, column in enumerate(schema.columns) if column.delta]
        lines = {name: line for line, name in enumerate(kinds)}
        lines |= {column.name: line for line, column in enumerate(schema.columns)}
        columns = {column.name: column for column in schema.columns}
        known = TableLayout(kinds, lines, texts, lists, columns, np.array(delta, np.int64))
        _layouts[schema.fingerprint] = known
    return known


def merged(schema: RecordModel, number: int, table: BatchTable) -> Batch | None:
    """Return the record of 1 to MOST_PARTS batches with a schema and its id.

    None if they are not of one job and run, or one cannot be encoded again: a number is beyond its Avro type.
    """
    of, texts, envelopes = layout(schema), dict[str, int](), table.envelopes
    if any(len({envelope[name] for envelope in envelopes}) > 1 for name in SHARED):
        return None
    if any(within_int32(schema, envelope) is not None for envelope in envelopes):
        return None
    fields = np.empty((len(of.kinds), table.parts), np.int64)
    for line, (name, kind) in enumerate(of.kinds.items()):
        values = [envelope[name] for envelope in envelopes]
        if kind not in NUMBERS:
            written = values if kind == "string" else map(json_text, values)
            values = [texts.setdefault(value, len(texts)) for value in written]
        fields[line] = values
    rows = np.empty((len(of.columns), table.rows), np.int64)
    for line, name in enumerate(of.columns):
        rows[line] = _as_integers(table.columns[name])
    if table.rows:
        rows[of.delta, 1:] = np.diff(rows[of.delta], axis=1)
    numbers = np.concatenate([fields.ravel(), rows.ravel()])
    head = {name: envelopes[0][name] for name in SHARED}
    head |= {"rows": len(numbers), "schema": number, "parts": table.parts, "texts": list(texts)}
    return Batch(MERGED, head, {"numbers": numbers})


def _as_integers(values: Array) -> Array:
    """Return 64 bits of each value, from which `MergedTable` makes it again."""
    if values.dtype.kind == "f":
        return values.astype(np.float64).view(np.int64)
    return values.view(np.int64) if values.dtype == np.uint64 else values
