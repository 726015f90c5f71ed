"""Keep one topic partition between Kafka and its table: collect records, cut a range, or rebuild one from its intent.

Records are classified once, when their range is cut; the result goes into the intent.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from drumline.infra.runtime.retry import Retry
from drumline.schemas.epochs import is_fenced
from drumline.sinks.ranges.duplicates import KNOWN_DEAD_LETTER, Duplicates, Place
from drumline.sinks.ranges.intent import MAX_BYTES, Intent, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.record import OBJECT_BYTES, Disposition, RangeEntry, Record
from drumline.sinks.ranges.rejection import InsertRejection
from drumline.sinks.tables.blocks import DAY_NS, MAX_ROWS
from drumline.sinks.tables.tables import SinkTable

#: Days (table partitions) one insert may touch; each costs a part and a slot of the deduplication log.
MAX_DAYS_PER_RANGE = 62
#: Names of kernels in one insert, counted in each record: rollups keep a group for each, and two inserts with 16,384
#: each took all memory of an engine with 1.2 GB. A range of a training job has fewer.
MAX_NAMES_PER_RANGE = 8_192
#: Bytes of records in one range: its texts exist about ten times while it is decoded, built and inserted.
RANGE_BYTES = 32 << 20
#: Dispositions whose offsets an intent lists, in the order of its fields.
LISTED = (Disposition.DEAD_LETTER, Disposition.DUPLICATE, Disposition.FENCED)


class ReplayImpossible(RuntimeError):
    """Fatal: a range with a committed intent cannot be rebuilt as it was. The sink stops and guesses nothing."""


class RangeStage(IntEnum):
    """Numbers the last step that a range has completed, as in docs/design/exactly-once.md."""

    CUT = 1
    DEAD_LETTERS_SENT = 2
    INTENT_COMMITTED = 3
    ROWS_INSERTED = 4
    LEDGER_INSERTED = 5
    COMMITTED = 6


@dataclass(slots=True)
class PendingRange:
    """Holds a range between its cut and its last commit.

    `entries`: in offset order, classified. `replay`: rebuilt from an intent. `intent_committed_at`: when this process
    committed the intent (monotonic, s); -inf if an earlier one did. `rejection`: ClickHouse's last answer to its rows.
    `unanswered`: an insert of its rows had no answer. `block_bytes`: of its rows, once they are built.
    """

    table: SinkTable
    range: OffsetRange
    entries: list[RangeEntry]
    stage: RangeStage = RangeStage.CUT
    replay: bool = False
    intent_committed_at: float = -math.inf
    rejection: InsertRejection | None = None
    unanswered: bool = False
    block_bytes: int = 0

    @property
    def stored(self) -> list[RangeEntry]:
        """Return the entries whose rows go into the table."""
        return [entry for entry in self.entries if entry.disposition is Disposition.STORED]

    def reject(self, code: int, now: float) -> None:
        """Record ClickHouse's error (0: no answer) to the rows."""
        self.unanswered |= not code
        if not code:
            self.rejection = None
            return
        last = self.rejection
        since, attempts = (last.since, last.attempts + 1) if last is not None else (now, 1)
        self.rejection = InsertRejection(code, since, self.block_bytes, attempts)

    @property
    def leader_epochs(self) -> tuple[int, int]:
        """Return the leader epochs of the first and the last record; -1 = unknown."""
        ends = (self.entries[0], self.entries[-1]) if self.entries else ()
        first, last = (entry.record.leader_epoch for entry in ends) if ends else (-1, -1)
        return first, last

    @property
    def intent(self) -> Intent:
        """Return the intent that fixes this range."""
        dead_letters, duplicate, fenced = (
            frozenset(e.record.offset for e in self.entries if e.disposition is disposition) for disposition in LISTED
        )
        rows = sum(entry.rows for entry in self.stored)
        last = self.entries[-1].record.published_ms if self.entries else -1
        return Intent(self.range, len(self.entries), rows, dead_letters, duplicate, last, fenced)


@dataclass(slots=True)
class PartitionState:
    """Collects the records of one assigned partition until they are cut into ranges.

    Created on assignment, dropped on revocation; used by the sink's thread only. `next_offset`: the first offset not
    yet taken in. `opened`: the ledger was read for the offset to start at. `has_committed`: Kafka had a committed
    offset. `stored_before`: a sink committed all records before this offset as stored. `parked`: the record at
    `next_offset`, while the registry cannot give its schema. `rows`: of `entries`. `bytes`: of `entries`, as they came;
    a dead letter counts as no row. `expected`: offset -> when Kafka received the record there, of records that Kafka
    must still have (stored_tail.py). `deferred`: a range that ClickHouse rejects (`reason`), and `retry`: its attempts;
    nothing is cut meanwhile. `limit`: records of a range after one was rejected; 0 = no limit. `rejected`: records in a
    row that ClickHouse rejects. `epochs`: source -> highest epoch of results so far. `unreadable`: first offset of a
    batch whose end is searched (kafka/unreadable.py); -1 = none. `flood`: where dead letters flooded it last, at
    `flood_at` (monotonic, s); `flooded`: it is not read until `flood_until`, so that it is read at a limited rate.
    `read_to`: offset up to which Kafka was read; more than `next_offset` where the last offsets have no record.
    `since`: when the first of the collected records came; `cut_at`: when a range was last cut (monotonic, s).
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
    since: float = 0.0
    cut_at: float = -math.inf
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
        return self.bytes + OBJECT_BYTES * len(self.entries)

    def counts_as_decoded(self, offset: int) -> bool:
        """Return True if the pending intent counts the record as decoded; its version may have had other bounds."""
        intent = self.intent
        return intent is not None and offset <= intent.range.last and offset not in intent.dead_letters

    def take(self, entry: RangeEntry, now: float) -> bool:
        """Take in the next record; return False if it is stored already. `now`: any monotonic clock, s."""
        if entry.record.offset < self.next_offset:
            return False
        if not self.entries:
            self.since = now
        if is_fenced(self.epochs, entry.epoch, entry.source):  # in the order of offsets, so before any cut
            entry.disposition = Disposition.FENCED
        self.entries.append(entry)
        self.rows += entry.rows
        self.bytes += entry.size
        self.next_offset = entry.record.offset + 1
        return True

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

    def cut(self, flush_rows: int, now: float) -> PendingRange:
        """Return the next range: a prefix of the collected records, limited to one insert and one intent.

        The history of all `identities_to_load()` and the contents of all `contents_to_load()` must be loaded. Fatal:
        ReplayImpossible.
        """
        if self.intent is not None:
            return self._rebuild(self.intent)
        first = self.entries[0].record.offset
        taken: list[RangeEntry] = []
        rows, size, names, days = 0, 0, 0, set[int]()
        while self.entries:
            entry = self.entries[0]
            span = set(range(entry.time_min // DAY_NS, entry.time_max // DAY_NS + 1))
            full = rows >= flush_rows or rows + entry.rows > MAX_ROWS or len(days | span) > MAX_DAYS_PER_RANGE
            full = full or size + entry.size > RANGE_BYTES or names + entry.names > MAX_NAMES_PER_RANGE
            if taken and (full or len(taken) == self.limit):
                break
            if not self.table.upsert:
                self.duplicates.classify(entry)
            candidate = PendingRange(
                self.table,
                OffsetRange(self.topic_id, self.partition, first, entry.record.offset),
                [*taken, entry] if entry.disposition in LISTED else taken,
            )
            if candidate.entries is not taken and len(write_intent(candidate.intent)) > MAX_BYTES and taken:
                self.duplicates.unclassify(entry)
                break
            taken.append(self.entries.popleft())
            size, names = size + entry.size, names + entry.names
            if entry.disposition is Disposition.STORED:
                rows += entry.rows
                days |= span
        last = taken[-1].record.offset
        self._count()
        self.since = self.cut_at = now
        return PendingRange(self.table, OffsetRange(self.topic_id, self.partition, first, last), taken)

    def split(self, pending: PendingRange) -> PendingRange:
        """Return the first half of a rejected range, to be committed as a range; the rest is collected again.

        Nothing of the range is stored, so the rest may be classified again. Its dead letters may be sent again.
        """
        self.limit = len(pending.entries) // 2
        half, rest = pending.entries[: self.limit], pending.entries[self.limit :]
        for entry in rest:
            self.duplicates.unclassify(entry)
        self.duplicates.history.clear()  # has the sequences of the rest
        self.duplicates.contents.clear()
        self.entries.extendleft(reversed(rest))
        self.since = -math.inf
        self._count()
        offsets = OffsetRange(pending.range.topic_id, self.partition, pending.range.first, half[-1].record.offset)
        return PendingRange(self.table, offsets, half, RangeStage.DEAD_LETTERS_SENT)

    def widen(self) -> None:
        """Record that a range is stored: attempts count from the start, and ranges may grow again."""
        self.retry.worked()
        self.limit = self.limit * 2 if 0 < self.limit < MAX_ROWS else 0

    def _count(self) -> None:
        self.rows = sum(entry.rows for entry in self.entries)
        self.bytes = sum(entry.size for entry in self.entries)

    def _rebuild(self, intent: Intent) -> PendingRange:
        entries: list[RangeEntry] = []
        while self.entries and self.entries[0].record.offset <= intent.range.last:
            entries.append(self.entries.popleft())
        where = f"{self.table.topic} partition {self.partition}, offsets {intent.range.first}..{intent.range.last}"
        if len(entries) != intent.records and not self.compacted:
            raise ReplayImpossible(f"{where}: {len(entries)} records are in Kafka, the intent has {intent.records}")
        for entry in entries:
            offset = entry.record.offset
            if offset in intent.dead_letters:
                entry.disposition, entry.error = (
                    Disposition.DEAD_LETTER,
                    entry.error if entry.error[0] else (KNOWN_DEAD_LETTER, ""),
                )
            elif entry.disposition is Disposition.DEAD_LETTER:
                raise ReplayImpossible(
                    f"{where}: the record at {offset} decoded when the intent was committed: {entry.error[1]}"
                )
            elif offset in intent.duplicate:
                entry.disposition = Disposition.DUPLICATE
            elif offset in intent.fenced:
                entry.disposition = Disposition.FENCED
            elif entry.disposition is Disposition.FENCED:
                entry.disposition = Disposition.STORED if entry.rows else Disposition.EMPTY
        pending = PendingRange(self.table, intent.range, entries, RangeStage.INTENT_COMMITTED, replay=True)
        rows = sum(entry.rows for entry in pending.stored)
        if rows != intent.rows and not self.compacted:
            raise ReplayImpossible(f"{where}: {rows} rows rebuilt, the intent has {intent.rows}")
        self.intent = None
        self._count()
        return pending
