"""Read many records of a partition at once: what is done once for all of them costs a part of one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec, OpenRecord
from drumline.schemas.errors import BadRecord
from drumline.schemas.parts.encoded import part_values
from drumline.schemas.parts.table import MergedTable
from drumline.sinks.ranges.disposition import PART_BYTES, RangeEntry, Record, read_all, received, stored
from drumline.sinks.tables.blocks import spans
from drumline.sinks.tables.tables import SinkTable

#: Records that are read at once: first so many, of those with a bad one fewer, and of these each alone. A bad record is
#: found late, so each size costs again what reading all costs.
SIZES = (256, 16)
#: Entries by the offset of their record.
Entries = dict[int, list[RangeEntry]]


def read_together(records: Sequence[Record], table: SinkTable, codec: Codec) -> list[list[RangeEntry]]:
    """Decode and check records of a partition that no intent lists, and that `Codec.reads_together`.

    Returns the entries of each, as `read_all` does.
    """
    groups = defaultdict[object, list[tuple[Record, OpenRecord | None]]](list)
    for record in records:
        opened: OpenRecord | None = None
        with suppress(BadRecord):  # found again alone
            opened = codec.open(table.topic, received(record))
        groups[None if opened is None else opened.unit].append((record, opened))
    entries: Entries = {}
    for unit, group in groups.items():
        known = [(record, opened) for record, opened in group if opened is not None and unit is not None]
        entries |= _read(known, table, codec) if known else _one_by_one([record for record, _ in group], table, codec)
    return [entries[record.offset] for record in records]


def _read(
    group: Sequence[tuple[Record, OpenRecord]], table: SinkTable, codec: Codec, sizes: Sequence[int] = SIZES
) -> Entries:
    if not sizes:
        return _one_by_one([record for record, _ in group], table, codec)
    entries: Entries = {}
    for begin in range(0, len(group), sizes[0]):
        piece = group[begin : begin + sizes[0]]
        read: Entries | None = None
        with suppress(BadRecord):
            read = _at_once(piece, table, codec)
        if read is None:
            read = _read(piece, table, codec, [size for size in sizes[1:] if size < len(piece)])
        entries |= read
    return entries


def _one_by_one(records: Sequence[Record], table: SinkTable, codec: Codec) -> Entries:
    return {record.offset: read_all(record, table, codec, lambda _: False, lambda _: False) for record in records}


def _at_once(group: Sequence[tuple[Record, OpenRecord]], table: SinkTable, codec: Codec) -> Entries | None:
    """Return the entries of records of one unit; None where ClickHouse may refuse one. Raises BadRecord."""
    first = group[0][1]
    read = codec.read(table.topic, [opened for _, opened in group])
    batches = read.batches()
    times = spans(table, read.columns, batches)
    if times is None:
        return None
    if isinstance(read, MergedTable):
        values = part_values(read, first.id)
    else:
        values = [record.value or b"" for record, _ in group]
    parts = zip(values, batches, times, strict=True)
    return {
        record.offset: list(_entries(record, table, islice(parts, size), opened.record is not None))
        for (record, opened), size in zip(group, read.sizes, strict=True)
    }


def _entries(
    record: Record, table: SinkTable, parts: Iterable[tuple[bytes, Batch, tuple[int, int]]], has_parts: bool
) -> Iterable[RangeEntry]:
    """Yield the entry of a record, or of each of its parts."""
    for number, (value, batch, span) in enumerate(parts, 1):
        part = replace(record, value=None, part=number) if has_parts else record
        entry = stored(part, table, value, batch, span)
        entry.objects = PART_BYTES if has_parts else entry.objects
        yield entry
