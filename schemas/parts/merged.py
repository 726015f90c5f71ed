"""Merge the batches of one host in one table, which consumers decode in one pass over all of its parts.

A large job has many ranks that send a few rows each: to decode a batch costs more than its rows do. A table has the
envelope fields of all parts side by side, then the columns of all parts. Parts keep all that they have; each can be
encoded again to the bytes that were merged. docs/reference/record-format.md describes the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array, Column
from drumline.schemas.model import RecordModel
from drumline.schemas.record_table import Ints, json_text

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


def merged(schema: RecordModel, number: int, batches: Sequence[Batch]) -> Batch:
    """Return the record of 1 to MOST_PARTS batches of one job and run, all with a schema and its id."""
    of, texts = layout(schema), dict[str, int]()
    fields = np.empty((len(of.kinds), len(batches)), np.int64)
    for part, batch in enumerate(batches):
        fields[:, part] = [
            value if kind in NUMBERS else texts.setdefault(value if kind == "string" else json_text(value), len(texts))
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


def _as_integers(values: Array) -> Array:
    """Return 64 bits of each value, from which `MergedTable` makes it again."""
    if values.dtype.kind == "f":
        return values.astype(np.float64).view(np.int64)
    return values.view(np.int64) if values.dtype == np.uint64 else values
