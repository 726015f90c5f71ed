"""Hold one range of a partition between its cut and its last commit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from drumline.sinks.ranges.disposition import Disposition, RangeEntry
from drumline.sinks.ranges.failed_insert import InsertRejection
from drumline.sinks.ranges.intent import Intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.tables.tables import SinkTable

#: Dispositions whose offsets an intent lists, in the order of its fields.
LISTED = (Disposition.DEAD_LETTER, Disposition.DUPLICATE, Disposition.FENCED, Disposition.EXPIRED)


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
        dead_letters, duplicate, fenced, expired = (
            frozenset(e.record.position for e in self.entries if e.disposition is disposition) for disposition in LISTED
        )
        rows = sum(entry.rows for entry in self.stored)
        last = self.entries[-1].record.published_ms if self.entries else -1
        return Intent(self.range, self.records, rows, dead_letters, duplicate, last, fenced, expired)

    @property
    def records(self) -> int:
        """Return the number of Kafka records, whose parts the entries may be."""
        return count_records(self.entries)


def count_records(entries: Iterable[RangeEntry]) -> int:
    """Return the number of Kafka records, whose parts the entries may be."""
    return len({entry.record.offset for entry in entries})
