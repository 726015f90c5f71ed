"""Keep one topic partition between Kafka and its table: collect records, cut a range, or rebuild one from its intent.

Records are classified once, when their range is cut; the result goes into the intent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from drumline.infra.runtime.retry import Retry
from drumline.schemas.epochs import is_fenced
from drumline.schemas.model import model
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.duplicates import Duplicates, Place
from drumline.sinks.ranges.intent import MAX_BYTES, Intent, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.pending_range import LISTED, PendingRange, RangeStage
from drumline.sinks.ranges.rebuild import rebuild
from drumline.sinks.tables.blocks import DAY_NS, MAX_ROWS
from drumline.sinks.tables.tables import SinkTable

#: Days (table partitions) one insert may touch; each costs a part and a slot of the deduplication log.
MAX_DAYS_PER_RANGE = 62
#: Names of kernels in one insert, counted in each record: rollups keep a group for each, and two inserts with 16,384
#: each took all memory of an engine with 1.2 GB. A range of a training job has fewer.
MAX_NAMES_PER_RANGE = 8_192
#: Bytes of records in one range: its texts exist about ten times while it is decoded, built and inserted.
RANGE_BYTES = 32 << 20
#: Bytes of an intent for one more position, and for all that grows in it beside positions, at most.
_POSITION_BYTES, _NUMBERS_BYTES = 24, 256


@dataclass(slots=True)
class PartitionState:
    """Collects the records of one assigned partition until they are cut into ranges.

    Created on assignment, dropped on revocation; used by the sink's thread only. `next_offset`: the first offset
    not yet taken in. `opened`: the ledger was read for the offset to start at. `has_committed`: Kafka had a
    committed offset. `stored_before`: a sink committed all records before this offset as stored. `parked`: the
    record at `next_offset`, while the registry cannot give its schema. `rows`: of `entries`. `bytes`: of `entries`,
    as they came; a dead letter counts as no row. `objects`: bytes of memory beside them. `expected`: offset -> when
    Kafka received the record there, of records that Kafka must still have (stored_tail.py). `deferred`: a range
    that ClickHouse rejects (`reason`), and `retry`: its attempts; nothing is cut meanwhile. `limit`: records of a
    range after one was rejected; 0 = no limit. `rejected`: records in a row that ClickHouse rejects. `epochs`:
    source -> highest epoch of results so far. `unreadable`: first offset of a batch whose end is searched
    (kafka/unreadable.py); -1 = none. `flood`: where dead letters flooded it last, at `flood_at` (monotonic, s);
    `flooded`: it is not read until `flood_until`, so that it is read at a limited rate. `read_to`: offset up to
    which Kafka was read; more than `next_offset` where the last offsets have no record. `waiting`: records before
    `next_offset` that are read together, behind `entries`. `since`: when the first of the collected records came
    (monotonic, s); `rows_since`: the first that has rows, `pause_s` after the rows before; `rows_at`: when the last
    rows came. Heartbeats have none.
    """

    table: SinkTable
    partition: int
    topic_id: str
    next_offset: int
    compacted: bool = False
    intent: Intent | None = None
    opened: bool = False
    has_committed: bool = False
    stored_before: int = 0
    parked: Record | None = None
    entries: deque[RangeEntry] = field(default_factory=deque)
    rows: int = 0
    bytes: int = 0
    objects: int = 0
    since: float = 0.0
    rows_since: float = math.inf
    pause_s: float = math.inf
    rows_at: float = -math.inf
    waiting: list[Record] = field(default_factory=list)
    duplicates: Duplicates = field(default_factory=Duplicates)
    expected: dict[int, int] = field(default_factory=dict)
    deferred: PendingRange | None = None
    retry: Retry = field(default_factory=Retry)
    reason: str = ""
    limit: int = 0
    rejected: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    unreadable: int = -1
    flood: str = ""
    flood_at: float = -math.inf
    flood_until: float = -math.inf
    flooded: bool = False
    read_to: int = 0

    @property
    def flows(self) -> bool:
        """Return True if the partition may be fetched from."""
        held = self.parked is not None or self.deferred is not None or self.unreadable >= 0 or self.flooded
        return self.opened and not held

    @property
    def memory(self) -> int:
        """Return about how many bytes of memory the collected records take; most of it where they are short."""
        return self.bytes + self.objects

    def counts_as_decoded(self, record: Record) -> bool:
        """Return True if the pending intent counts the record as decoded; its version may have had other bounds."""
        intent = self.intent
        return intent is not None and record.offset <= intent.range.last and record.position not in intent.dead_letters

    def counts_as_buried(self, record: Record) -> bool:
        """Return True if the pending intent lists the record, or the part, as a dead letter."""
        return self.intent is not None and record.position in self.intent.dead_letters

    def take(self, entry: RangeEntry, now: float) -> bool:
        """Take in the next record or part; return False if it is stored already. `now`: any monotonic clock, s."""
        if entry.record.offset < self.next_offset - (entry.record.part > 1):
            return False
        if not self.entries:
            self.since = now
        if entry.rows:
            if not self.rows:
                self.rows_since, self.pause_s = now, now - self.rows_at
            self.rows_at = now
        if is_fenced(self.epochs, entry.epoch, entry.source):  # in the order of offsets, so before any cut
            entry.disposition = Disposition.FENCED
        self.entries.append(entry)
        self.rows += entry.rows
        self.bytes += entry.size
        self.objects += entry.objects
        self.next_offset = entry.record.offset + 1
        return True

    def wait(self, record: Record) -> None:
        """Keep the next record, to be read with those behind it."""
        self.waiting.append(record)
        self.next_offset = record.offset + 1

    def take_waiting(self, records: Iterable[Sequence[RangeEntry]], now: float) -> None:
        """Take in the `waiting` records."""
        self.next_offset = self.waiting[0].offset
        self.waiting = []
        for parts in records:
            for entry in parts:
                self.take(entry, now)

    def due(self, now: float, flush_rows: int, flush_s: float) -> bool:
        """Return True if a range should be cut.

        A range with an intent is due once it is read again, whatever its size.
        """
        if self.deferred is not None:
            return False
        if self.intent is not None:
            return self.next_offset > self.intent.range.last
        full = self.rows >= flush_rows or self.bytes >= RANGE_BYTES
        return bool(self.entries) and (full or now - self.since >= flush_s)

    def identities_to_load(self) -> set[tuple[str, str]]:
        """Return the identities among the collected records whose history is not loaded."""
        if self.table.upsert:
            return set()
        return self.duplicates.unloaded(self.entries)

    def contents_to_load(self) -> set[Place]:
        """Return the places whose stored contents decide whether a collected record is a duplicate.

        The history of all `identities_to_load()` must be loaded.
        """
        return set() if self.table.upsert else self.duplicates.repeated(self.entries)

    def cut(self, flush_rows: int, now: float, expired_until_ms: int = 0) -> PendingRange:
        """Return the next range: a prefix of the collected records, limited to one insert and one intent.

        The history of all `identities_to_load()` and the contents of all `contents_to_load()` must be loaded.
        `expired_until_ms`: see `RangeEntry.expire`. Fatal: ReplayImpossible.
        """
        if self.intent is not None:
            return self._rebuild(self.intent)
        first = self.entries[0].record.offset
        taken: list[RangeEntry] = []
        rows, size, names, days, is_named = 0, 0, 0, set[int](), "names" in model(self.table.topic).envelope
        records = quota = 0  # quota: positions that surely fit into the intent
        while self.entries:
            parts, span, more_rows, more_size, more_names = self._next_record(), set[int](), 0, 0, 0
            for entry in parts:
                span.update(range(entry.time_min // DAY_NS, entry.time_max // DAY_NS + 1))
                more_rows, more_size = more_rows + entry.rows, more_size + entry.size
                more_names += entry.names if is_named else 0
            full = rows >= flush_rows or rows + more_rows > MAX_ROWS or len(days | span) > MAX_DAYS_PER_RANGE
            full = full or size + more_size > RANGE_BYTES or names + more_names > MAX_NAMES_PER_RANGE
            if taken and (full or records == self.limit):
                break
            for entry in parts:
                entry.expire(expired_until_ms)
                if not self.table.upsert:
                    self.duplicates.classify(entry)
            quota -= sum(entry.disposition in LISTED for entry in parts)
            if quota < 0 and taken:
                offsets = OffsetRange(self.topic_id, self.partition, first, parts[0].record.offset)
                size_now = len(write_intent(PendingRange(self.table, offsets, [*taken, *parts]).intent))
                if size_now > MAX_BYTES:
                    self._unclassify(parts)  # of a record that is a batch itself nothing is left
                    break
                quota = max(0, MAX_BYTES - size_now - _NUMBERS_BYTES) // _POSITION_BYTES
            for entry in parts:
                taken.append(self.entries.popleft())
                if entry.disposition is Disposition.STORED:
                    rows += entry.rows
                    days.update(range(entry.time_min // DAY_NS, entry.time_max // DAY_NS + 1))
            records, size, names = records + 1, size + more_size, names + more_names
            if parts[-1].batch_last >= 0:  # the range ends with it: so the ledger knows its last offset
                break
        last = taken[-1].last
        self._count()
        self.since = self.rows_since = now
        self.pause_s = 0.0
        return PendingRange(self.table, OffsetRange(self.topic_id, self.partition, first, last), taken)

    def split(self, pending: PendingRange) -> PendingRange:
        """Return the first half of a rejected range, to be committed as a range; the rest is collected again.

        Nothing of the range is stored, so the rest may be classified again. Its dead letters may be sent again.
        """
        self.limit = pending.records // 2
        offsets = sorted({entry.record.offset for entry in pending.entries})
        half = [entry for entry in pending.entries if entry.record.offset < offsets[self.limit]]
        rest = pending.entries[len(half) :]
        self._unclassify(rest)
        self.entries.extendleft(reversed(rest))
        self.since = -math.inf
        self._count()
        place = OffsetRange(pending.range.topic_id, self.partition, pending.range.first, half[-1].last)
        return PendingRange(self.table, place, half, RangeStage.DEAD_LETTERS_SENT)

    def widen(self) -> None:
        """Record that a range is stored: attempts count from the start, and ranges may grow again."""
        self.retry.worked()
        self.limit = self.limit * 2 if 0 < self.limit < MAX_ROWS else 0

    def _unclassify(self, entries: Iterable[RangeEntry]) -> None:
        """Have records classified again."""
        left = False
        for entry in entries:
            left |= entry.disposition not in LISTED
            self.duplicates.unclassify(entry)
        if left:  # history has their sequences
            self.duplicates.history.clear()
            self.duplicates.contents.clear()

    def _next_record(self) -> list[RangeEntry]:
        """Return the first of the collected records, or its parts: they share an offset, and so a range."""
        offset, parts = self.entries[0].record.offset, []
        for entry in self.entries:
            if entry.record.offset != offset:
                break
            parts.append(entry)
        return parts

    def _count(self) -> None:
        self.rows = sum(entry.rows for entry in self.entries)
        self.bytes = sum(entry.size for entry in self.entries)
        self.objects = sum(entry.objects for entry in self.entries)

    def _rebuild(self, intent: Intent) -> PendingRange:
        entries: list[RangeEntry] = []
        while self.entries and self.entries[0].record.offset <= intent.range.last:
            entries.append(self.entries.popleft())
        pending = rebuild(self.table, intent, entries, compacted=self.compacted)
        self.intent = None
        self._count()
        return pending
