"""Read many records of a partition at once: what is done once for all of them costs a part of one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import header_bytes
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec, JoinedRecord, Received
from drumline.schemas.confluent import header
from drumline.schemas.epochs import read_epoch
from drumline.schemas.errors import BadRecord
from drumline.schemas.parts.encoded import encoded
from drumline.schemas.topics import DERIVED_TOPICS
from drumline.sinks.ranges.record import PART_BYTES, Disposition, RangeEntry, Record, content_hash, read_all
from drumline.sinks.tables.blocks import row_count, spans
from drumline.sinks.tables.tables import SinkTable

#: Records that are read at once: first so many, of those with a bad one fewer, and of these each alone. A bad record is
#: found late, so each size costs again what reading all costs.
SIZES = (256, 16)
#: Entries by the offset of their record.
Entries = dict[int, list[RangeEntry]]
#: A record, and what it joins; None for a batch.
Read = tuple[Record, JoinedRecord | None]


def read_together(records: Sequence[Record], table: SinkTable, codec: Codec) -> list[list[RangeEntry]]:
    """Decode and check records of a partition that no intent lists, and that `Codec.reads_together`.

    Returns the entries of each, as `read_all` does.
    """
    groups = defaultdict[object, list[Read]](list)
    for record in records:
        joined: JoinedRecord | None = None
        with suppress(BadRecord):  # found again alone
            joined = codec.joined_record(table.topic, record.value, record.key, record.headers)
        groups[None if joined is None else joined.unit].append((record, joined))
    entries: Entries = {}
    for group in groups.values():
        entries |= _read(group, table, codec)
    return [entries[record.offset] for record in records]


def _read(group: Sequence[Read], table: SinkTable, codec: Codec, sizes: Sequence[int] = SIZES) -> Entries:
    if not sizes:
        return {of.offset: read_all(of, table, codec, lambda _: False, lambda _: False) for of, _ in group}
    entries: Entries = {}
    for begin in range(0, len(group), sizes[0]):
        piece = group[begin : begin + sizes[0]]
        read = _at_once(piece, table, codec)
        if read is None:
            read = _read(piece, table, codec, [size for size in sizes[1:] if size < len(piece)])
        entries |= read
    return entries


def _at_once(group: Sequence[Read], table: SinkTable, codec: Codec) -> Entries | None:
    """Return the entries of records, all batches or all of one unit; None where one may be bad."""
    records, joined = [record for record, _ in group], [of for _, of in group if of is not None]
    if any(of.unit is None for of in joined):
        return None
    with suppress(BadRecord):
        return _of_tables(records, joined, table, codec) if joined else _of_batches(records, table, codec)
    return None


def _of_batches(records: Sequence[Record], table: SinkTable, codec: Codec) -> Entries | None:
    """Return the entries of records that are batches; None where one may be bad."""
    received = [Received(of.value or b"", of.timestamp_ms, of.key, of.headers) for of in records]
    read = codec.decode_together(table.topic, received)
    batches = [] if read is None else read.batches()
    times = None if read is None else spans(table, read.columns, batches)
    if times is None:
        return None
    entries: Entries = {}
    for record, batch, span in zip(records, batches, times, strict=True):
        value, around = record.value or b"", _around(record)
        epoch, source = read_epoch(record.headers) if table.topic in DERIVED_TOPICS else (None, "")
        record.value, record.headers = None, []
        entry = _entry(record, table, value, around, batch, span)
        entry.epoch, entry.source = epoch, source
        entries[record.offset] = [entry]
    return entries


def _of_tables(records: Sequence[Record], of: Sequence[JoinedRecord], table: SinkTable, codec: Codec) -> Entries | None:
    """Return the entries of records of one unit; None where a part may be bad. Raises BadRecord."""
    merged = codec.together(table.topic, of)
    if not is_inside(merged, *(record.timestamp_ms for record in records)):
        return None
    values, batches = encoded(merged, header(of[0].id)), merged.batches()
    times = spans(table, merged.columns, batches)
    if values is None or times is None:
        return None
    parts = zip(values, batches, times, strict=True)
    return {
        record.offset: list(_parts(record, table, islice(parts, size)))
        for record, size in zip(records, merged.sizes, strict=True)
    }


def _parts(
    record: Record, table: SinkTable, parts: Iterable[tuple[bytes, Batch, tuple[int, int]]]
) -> Iterable[RangeEntry]:
    around = _around(record)
    place, appended = (record.topic, record.partition, record.offset, record.key, None), record.timestamp_ms
    for number, (value, batch, span) in enumerate(parts, 1):
        part = Record(*place, appended, [], record.leader_epoch, number)
        entry = _entry(part, table, value, around, batch, span)
        entry.objects = PART_BYTES
        yield entry


def _around(record: Record) -> int:
    return len(record.key or b"") + header_bytes(record.headers)


def _entry(
    record: Record, table: SinkTable, value: bytes, around: int, batch: Batch, span: tuple[int, int]
) -> RangeEntry:
    """Return the entry of a batch within its bounds. `around`: bytes of key and headers."""
    rows = row_count(table, batch)
    content = content_hash(value) if rows and not table.upsert else 0
    disposition = Disposition.STORED if rows else Disposition.EMPTY
    return RangeEntry(record, len(value) + around, batch, disposition, rows, *span, content=content)
