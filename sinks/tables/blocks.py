"""Build one Native block from the batches of one range, and find batches that no table can hold.

Works on columns; no Python code runs per row, except for columns of type String.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from drumline.schemas.batch import Batch, RowsOf
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.sinks.tables import native_format as native
from drumline.sinks.tables.native_format import Texts
from drumline.sinks.tables.tables import ColumnSource, SinkTable, TableColumn

#: The end of ClickHouse's DateTime (partition keys); ns since the epoch.
TIME_END_NS = (1 << 32) * 1_000_000_000
DAY_NS = 86_400_000_000_000
#: A batch is half a second of one process. One whose rows lie further apart has broken clocks and would cost a table
#: partition per day.
MAX_DAYS = 31
#: ClickHouse writes a block of up to 1,048,449 rows as one atomic insert.
MAX_ROWS = 1_000_000


def row_count(table: SinkTable, batch: Batch) -> int:
    """Return the rows that the batch becomes: its own, or one where the record itself is the row (gpu.process.v1)."""
    return batch.rows if table.has_columns else 1


def time_span(table: SinkTable, batch: Batch) -> tuple[int, int]:
    """Return (earliest, latest) of the table's clock in the batch, ns since the epoch; (0, 0) without rows or clock."""
    if not table.clock or not batch.rows:
        return 0, 0
    values = batch.columns.get(table.clock)
    if values is None:
        return int(batch.envelope[table.clock]), int(batch.envelope[table.clock])
    return int(values.min()), int(values.max())


def spans(table: SinkTable, columns: Mapping[str, Array], batches: Sequence[Batch]) -> list[tuple[int, int]] | None:
    """Return the `time_span` of each of some batches; None where one of them may be `unstorable`.

    `columns`: of all rows, batch by batch.
    """
    packed, counts = {column.name for column in model(table.topic).columns}, np.array([of.rows for of in batches])

    def of(field: str) -> Array:
        return columns[field] if field in packed else np.array([batch.envelope[field] for batch in batches], np.int64)

    limits = [(field, TIME_END_NS) for field in table.times] + [(field, 1 << 62) for field in table.durations]
    for field, end in limits:
        values = of(field)
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < end:
            return None
    if not all(np.isin(columns[column.field], column.enum).all() for column in table.enums):
        return None
    if len(counts) and int(counts.max()) > MAX_ROWS:
        return None
    first, last = np.zeros(len(batches), np.int64), np.zeros(len(batches), np.int64)
    has_rows = counts > 0
    if table.clock and has_rows.any():
        values = of(table.clock)
        if table.clock in packed:
            begins = (np.cumsum(counts) - counts)[has_rows]
            first[has_rows], last[has_rows] = np.minimum.reduceat(values, begins), np.maximum.reduceat(values, begins)
        else:
            first[has_rows] = last[has_rows] = values[has_rows]
        if int((last // DAY_NS - first // DAY_NS).max()) >= MAX_DAYS:
            return None
    return list(zip(first.tolist(), last.tolist(), strict=True))


def unstorable(table: SinkTable, batch: Batch) -> str:
    """Return the reason why the table cannot hold the batch, naming the field; "" if it can."""
    if batch.rows > MAX_ROWS:
        return f"{table.topic}.rows: {batch.rows} in one batch, at most {MAX_ROWS} can be stored at once"
    for field in table.times:
        values = batch.columns.get(field)
        if values is None:
            values = np.array([batch.envelope[field]], dtype=np.int64)
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= TIME_END_NS):
            return f"{table.topic}.{field}: a time outside 1970..2106"
    for field in table.durations:
        values = batch.columns[field]
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= 1 << 62):
            return f"{table.topic}.{field}: a negative or impossible duration"
    for column in table.enums:
        if not np.isin(batch.columns[column.field], column.enum).all():
            return f"{table.topic}.{column.field}: a number without a label"
    first, last = time_span(table, batch)
    if last // DAY_NS - first // DAY_NS >= MAX_DAYS:
        return f"{table.topic}.{table.clock}: rows of one batch lie {(last - first) // DAY_NS} days apart"
    return ""


def _per_batch(batches: Sequence[Batch], counts: Array, column: TableColumn) -> bytes:
    """Return a column whose value is the same for all rows of a batch."""
    values = [batch.envelope[column.field] for batch in batches]
    if column.source is ColumnSource.MAP:
        return native.maps([v for v, n in zip(values, counts.tolist(), strict=True) for _ in range(n)])
    if column.source is ColumnSource.TEXT:
        texts = Texts()
        indices = np.array(texts.indices(values), np.uint32)
        return native.low_cardinality(texts.distinct, np.repeat(indices, counts))
    return np.repeat(np.array(values, dtype=column.dtype), counts).tobytes()


def _tables(batches: Sequence[Batch]) -> list[Mapping[str, Array]]:
    """Return the columns of all batches, one behind the other; those that follow each other in a table together."""
    tables: list[Mapping[str, Array]] = []
    for batch in batches:
        columns, last = batch.columns, tables[-1] if tables else None
        if not isinstance(columns, RowsOf):
            tables.append(columns)
        elif isinstance(last, RowsOf) and last.of is columns.of and last.end == columns.begin:
            tables[-1] = RowsOf(last.of, last.begin, columns.end)
        else:
            tables.append(RowsOf(columns.of, columns.begin, columns.end))
    return tables


def _per_row(
    tables: Sequence[Mapping[str, Array]], batches: Sequence[Batch], counts: Array, column: TableColumn
) -> bytes:
    """Return a packed column; dictionary columns through a lookup of all batches' texts."""
    joined = np.concatenate([columns[column.field] for columns in tables])
    if column.source is ColumnSource.PACKED:
        return (
            native.nullable(joined, joined == -1) if column.null else joined.astype(column.dtype, copy=False).tobytes()
        )
    begins, lookup, texts = _dictionaries([batch.envelope[column.dictionary] for batch in batches])
    indices = lookup[np.repeat(begins, counts) + joined]
    if column.type == "String":
        encoded = [native.text(value) for value in texts]
        return b"".join([encoded[i] for i in indices.tolist()])
    return native.low_cardinality(texts, indices)


def _dictionaries(lists: Sequence[Sequence[str]]) -> tuple[Array, Array, list[str]]:
    """Return of the dictionaries of batches: where each begins in the lookup, the lookup, and the distinct texts.

    Batches of a table share a list that is equal.
    """
    texts, begins, lookup = Texts(), dict[int, int](), list[int]()
    for items in lists:
        if id(items) not in begins:
            begins[id(items)] = len(lookup)
            lookup += texts.indices(items)
    return np.array([begins[id(items)] for items in lists], np.uint32), np.array(lookup, np.uint32), texts.distinct


def rows_block(
    table: SinkTable,
    topic_partition: str,
    batches: Sequence[Batch],
    offsets: Sequence[int],
    published_ms: Sequence[int],
) -> tuple[int, bytes]:
    """Return (rows, block) of batches in offset order; all have rows. The same arguments give the same bytes.

    Rows are numbered within a record: those of a part follow those of the part before it.
    """
    counts = np.array([batch.rows for batch in batches] if table.has_columns else [1] * len(batches), np.int64)
    tables = _tables(batches)
    rows = int(counts.sum())
    columns: list[tuple[str, str, bytes]] = []
    for column in table.columns:
        if column.source is ColumnSource.META:
            data = _meta(column.name, topic_partition, counts, offsets, published_ms)
        elif column.source in (ColumnSource.PACKED, ColumnSource.DICTIONARY):
            data = _per_row(tables, batches, counts, column)
        else:
            data = _per_batch(batches, counts, column)
        columns.append((column.name, column.type, data))
    return rows, native.block(rows, columns)


def _meta(name: str, topic_partition: str, counts: Array, offsets: Sequence[int], published_ms: Sequence[int]) -> bytes:
    if name == "_offset":
        return np.repeat(np.array(offsets, dtype="<u8"), counts).tobytes()
    if name == "published":
        return np.repeat(
            np.clip(np.array(published_ms, dtype="<i8"), 0, TIME_END_NS // 1_000_000 - 1), counts
        ).tobytes()
    rows = int(counts.sum())
    if name == "_row":
        starts = np.array([0, *accumulate(counts.tolist())][:-1], dtype=np.int64)
        starts = starts[np.searchsorted(offsets, offsets)]  # of the first batch with the offset
        return (np.arange(rows) - np.repeat(starts, counts)).astype("<u4").tobytes()
    return native.low_cardinality([topic_partition], np.zeros(rows, dtype=np.uint8))
