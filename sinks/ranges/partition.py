"""One topic partition between Kafka and its table: collect, cut a range, or rebuild one that was announced. Pure.

Judging happens when a range is cut and never again: what is judged goes into the intent.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

from drumline.sinks.ranges.intent import MAX_BYTES, Intent, write_intent
from drumline.sinks.ranges.offset_ranges import Intervals, OffsetRange
from drumline.sinks.ranges.record import Entry, Record, Verdict
from drumline.sinks.tables.blocks import DAY_NS, MAX_ROWS
from drumline.sinks.tables.tables import Table

#: Days (table partitions) one insert may touch; each costs a part and a slot of the deduplication log.
MAX_DAYS_PER_RANGE = 62

#: Batch identity -> sequences stored so far.
History = dict[tuple[str, str], Intervals]


class ReplayImpossible(RuntimeError):
    """An announced range cannot be rebuilt as it was. Nothing is guessed: the sink stops."""


class Stage(IntEnum):
    """How far a range is; the numbers are those of docs/design/exactly-once.md."""

    CUT = 1
    LETTERS_SENT = 2
    INTENT_COMMITTED = 3
    ROWS_INSERTED = 4
    LEDGER_INSERTED = 5
    COMMITTED = 6


@dataclass(slots=True)
class Pending:
    """A range on its way. `entries` in offset order, judged. `announced`: when this life of the sink committed its
    intent (monotonic, s)."""

    table: Table
    range: OffsetRange
    entries: list[Entry]
    stage: Stage = Stage.CUT
    replay: bool = False
    announced: float = -math.inf

    @property
    def stored(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.verdict is Verdict.STORED]

    @property
    def intent(self) -> Intent:
        dead, duplicate = (
            frozenset(e.record.offset for e in self.entries if e.verdict is verdict)
            for verdict in (Verdict.DEAD, Verdict.DUPLICATE)
        )
        rows = sum(entry.rows for entry in self.stored)
        return Intent(self.range, len(self.entries), rows, dead, duplicate)


@dataclass(slots=True)
class PartitionState:
    """`next_offset`: the first offset not yet taken in. `opened`: the ledger has been asked where to go on.
    `said`: Kafka had a committed offset. `parked`: the record there, while the registry cannot be asked for its
    schema. `rows`, `dead_bytes`: of `entries`; of dead records, which are kept as they came."""

    table: Table
    partition: int
    topic_id: str
    next_offset: int
    compacted: bool = False
    intent: Intent | None = None
    opened: bool = False
    said: bool = False
    parked: Record | None = None
    entries: deque[Entry] = field(default_factory=deque)
    rows: int = 0
    dead_bytes: int = 0
    since: float = 0.0
    history: History = field(default_factory=dict)

    def take(self, entry: Entry, now: float) -> bool:
        """Take in the next record; False for one that is behind (stored already). `now`: any monotonic clock, s."""
        if entry.record.offset < self.next_offset:
            return False
        if not self.entries:
            self.since = now
        self.entries.append(entry)
        self.rows += entry.rows
        self.dead_bytes += entry.size if entry.verdict is Verdict.DEAD else 0
        self.next_offset = entry.record.offset + 1
        return True

    def due(self, now: float, flush_rows: int, flush_s: float) -> bool:
        """Time to write. A range that was announced is due as soon as it is read again, whatever its size."""
        if self.intent is not None:
            return self.next_offset > self.intent.range.last
        return bool(self.entries) and (self.rows >= flush_rows or now - self.since >= flush_s)

    def unknown(self) -> set[tuple[str, str]]:
        """Identities among the collected records whose history has not been loaded."""
        if self.table.upsert:
            return set()
        return {i for entry in self.entries if (i := _identity(entry)) is not None and i not in self.history}

    def cut(self, flush_rows: int, now: float) -> Pending:
        """The next range: a prefix of what was collected, at most what one insert and one intent can hold. The history
        of all `unknown()` identities must be there. Raises ReplayImpossible."""
        if self.intent is not None:
            return self._rebuild(self.intent)
        first = self.entries[0].record.offset
        taken: list[Entry] = []
        rows, days = 0, set[int]()
        while self.entries:
            entry = self.entries[0]
            span = set(range(entry.time_min // DAY_NS, entry.time_max // DAY_NS + 1))
            full = rows >= flush_rows or rows + entry.rows > MAX_ROWS or len(days | span) > MAX_DAYS_PER_RANGE
            if taken and full:
                break
            self._judge(entry)
            candidate = Pending(
                self.table,
                OffsetRange(self.topic_id, self.partition, first, entry.record.offset),
                [*taken, entry] if entry.verdict in (Verdict.DEAD, Verdict.DUPLICATE) else taken,
            )
            if candidate.entries is not taken and len(write_intent(candidate.intent)) > MAX_BYTES and taken:
                self._unjudge(entry)
                break
            taken.append(self.entries.popleft())
            if entry.verdict is Verdict.STORED:
                rows += entry.rows
                days |= span
        last = taken[-1].record.offset
        self._count()
        self.since = now
        return Pending(self.table, OffsetRange(self.topic_id, self.partition, first, last), taken)

    def _count(self) -> None:
        self.rows = sum(entry.rows for entry in self.entries)
        self.dead_bytes = sum(entry.size for entry in self.entries if entry.verdict is Verdict.DEAD)

    def _judge(self, entry: Entry) -> None:
        identity = _identity(entry)
        if identity is None or self.table.upsert or entry.batch is None:
            return
        if not self.history[identity].add(int(entry.batch.envelope["sequence"])):
            entry.verdict = Verdict.DUPLICATE

    def _unjudge(self, entry: Entry) -> None:
        """Only ever a duplicate or dead record: history is as before, the verdict is found again."""
        if entry.verdict is Verdict.DUPLICATE:
            entry.verdict = Verdict.STORED if entry.rows else Verdict.EMPTY

    def _rebuild(self, intent: Intent) -> Pending:
        entries: list[Entry] = []
        while self.entries and self.entries[0].record.offset <= intent.range.last:
            entries.append(self.entries.popleft())
        where = f"{self.table.topic} partition {self.partition}, offsets {intent.range.first}..{intent.range.last}"
        if len(entries) != intent.records and not self.compacted:
            raise ReplayImpossible(f"{where}: {len(entries)} records are there, {intent.records} were announced")
        for entry in entries:
            offset = entry.record.offset
            if offset in intent.dead:
                entry.verdict, entry.error = Verdict.DEAD, entry.error if entry.error[0] else ("JudgedDead", "")
            elif entry.verdict is Verdict.DEAD:
                raise ReplayImpossible(f"{where}: the record at {offset} decoded when announced: {entry.error[1]}")
            elif offset in intent.duplicate:
                entry.verdict = Verdict.DUPLICATE
        pending = Pending(self.table, intent.range, entries, Stage.INTENT_COMMITTED, replay=True)
        rows = sum(entry.rows for entry in pending.stored)
        if rows != intent.rows and not self.compacted:
            raise ReplayImpossible(f"{where}: {rows} rows rebuilt, {intent.rows} were announced")
        self.intent = None
        self._count()
        return pending


def _identity(entry: Entry) -> tuple[str, str] | None:
    """(process, key) that the record's sequence counts for; None where it names no process."""
    if entry.batch is None or entry.verdict is Verdict.DEAD or not entry.batch.envelope["process_id"]:
        return None
    return str(entry.batch.envelope["process_id"]), entry.record.key_text
