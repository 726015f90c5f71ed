"""Read records of a partition to entries: many at once, as that costs a part of one by one, or one and its parts."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import check_size, header_bytes
from drumline.schemas.codec import Codec, OpenRecord, Received
from drumline.schemas.confluent import HEADER
from drumline.schemas.epochs import read_epoch
from drumline.schemas.errors import BadRecord
from drumline.schemas.parts.encoded import part_values
from drumline.schemas.parts.table import MergedTable
from drumline.schemas.tenants import is_signed
from drumline.schemas.topics import DERIVED_TOPICS
from drumline.sinks.ranges.disposition import PART_BYTES, Disposition, RangeEntry, Record
from drumline.sinks.tables.blocks import row_count, spans, time_span, unstorable
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


def read_all(
    record: Record,
    table: SinkTable,
    codec: Codec,
    is_counted: Callable[[Record], bool],
    is_buried: Callable[[Record], bool],
) -> list[RangeEntry]:
    """Decode and check a record: an entry for it, or for each of its parts.

    Duplicates are found later, when its range is cut. `is_counted`: whether an intent counts a record or part as
    decoded. `is_buried`: whether one lists the record, as a whole, as a dead letter. Retry later: RegistryUnavailable.
    """
    counted = is_counted(record)
    try:
        if record.value is None and table.upsert:  # a tombstone: the key was deleted from the compacted topic
            if not counted:
                check_size(table.topic, record.key, None, record.headers)
            size, record.headers = record.size, []
            return [RangeEntry(record, size, None, Disposition.EMPTY)]
        opened = codec.open(table.topic, received(record), bounded=not counted)
        values = codec.values(table.topic, opened)
    except BadRecord as error:
        return [_rejected(record, error)]
    if opened.record is None:
        return [_read_one(record, opened, table, codec, bounded=not counted)]
    if is_buried(record):  # it did not decode when the intent was written; the rebuilt range has to be the same
        return [RangeEntry(record, record.size, None, Disposition.DEAD_LETTER)]
    parts = [replace(record, value=value, part=number) for number, value in enumerate(values, 1)]
    entries = [_read_one(part, opened, table, codec, bounded=not is_counted(part)) for part in parts]
    if is_signed(record.headers):
        for entry in entries:  # its dead letter has the value that was signed
            if entry.disposition is Disposition.DEAD_LETTER:
                entry.record.value = record.value
    return entries


def received(record: Record) -> Received:
    """Return a record as the codec takes it."""
    return Received(record.value, record.timestamp_ms, record.key, record.headers)


def _read_one(record: Record, of: OpenRecord, table: SinkTable, codec: Codec, *, bounded: bool) -> RangeEntry:
    """Decode and check a record, or a part of one. Retry later: RegistryUnavailable."""
    try:
        batch = codec.decode_part(table.topic, record.value, of, bounded=bounded)
    except BadRecord as error:
        return _rejected(record, error)
    reason = unstorable(table, batch)
    if reason:
        return RangeEntry(record, record.size, batch, Disposition.DEAD_LETTER, error=("Unstorable", reason))
    return stored(record, table, record.value or b"", batch, time_span(table, batch))


def stored(record: Record, table: SinkTable, value: bytes, batch: Batch, span: tuple[int, int]) -> RangeEntry:
    """Return the entry of a batch that can be stored; its record keeps no bytes. `value`: of the record or part."""
    rows, size = row_count(table, batch), len(value) + len(record.key or b"") + header_bytes(record.headers)
    content = content_hash(value) if rows and not table.upsert else 0
    epoch, source = read_epoch(record.headers) if table.topic in DERIVED_TOPICS else (None, "")
    disposition = Disposition.STORED if rows else Disposition.EMPTY
    record.value, record.headers = None, []
    return RangeEntry(record, size, batch, disposition, rows, *span, content=content, epoch=epoch, source=source)


def _rejected(record: Record, error: BadRecord) -> RangeEntry:
    reason = type(error).__name__, str(error)
    return RangeEntry(record, record.size, None, Disposition.DEAD_LETTER, error=reason)


def content_hash(value: bytes) -> int:
    """Return 64 bits that tell contents apart, never 0. Another schema id of the same bytes changes nothing.

    An agent that publishes a batch again sends the bytes that lie in the spool. SHA-256, which CPUs have instructions
    for: nobody computes a second value for the hash of another's batch.
    """
    digest = hashlib.sha256(memoryview(value)[HEADER.size :]).digest()
    return int.from_bytes(digest[:8], "little") or 1
