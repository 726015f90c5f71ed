"""Rebuild a range as the intent says that it was cut, from the same records, read again."""

from __future__ import annotations

from drumline.sinks.ranges.disposition import Disposition, RangeEntry
from drumline.sinks.ranges.duplicates import KNOWN_DEAD_LETTER
from drumline.sinks.ranges.intent import Intent
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage, count_records
from drumline.sinks.tables.tables import SinkTable


class ReplayImpossible(RuntimeError):
    """Fatal: a range with a committed intent cannot be rebuilt as it was. The sink stops and guesses nothing."""


def rebuild(table: SinkTable, intent: Intent, entries: list[RangeEntry], *, compacted: bool) -> PendingRange:
    """Return the range of an intent, with the dispositions of then. Fatal: ReplayImpossible.

    `entries`: all of the range that Kafka has. `compacted`: Kafka may have removed records of the topic meanwhile.
    """
    where = f"{table.topic} partition {intent.range.partition}, offsets {intent.range.first}..{intent.range.last}"
    if (records := count_records(entries)) != intent.records and not compacted:
        raise ReplayImpossible(f"{where}: {records} records are in Kafka, the intent has {intent.records}")
    for entry in entries:
        number = entry.record.position
        if number in intent.dead_letters:
            entry.disposition, entry.error = (
                Disposition.DEAD_LETTER,
                entry.error if entry.error[0] else (KNOWN_DEAD_LETTER, ""),
            )
        elif entry.disposition is Disposition.DEAD_LETTER:
            raise ReplayImpossible(
                f"{where}: the record at {entry.record.offset} decoded when the intent was committed: {entry.error[1]}"
            )
        elif number in intent.duplicate:
            entry.disposition = Disposition.DUPLICATE
        elif number in intent.fenced:
            entry.disposition = Disposition.FENCED
        elif number in intent.expired:
            entry.disposition = Disposition.EXPIRED
        elif entry.disposition is Disposition.FENCED:
            entry.disposition = Disposition.STORED if entry.rows else Disposition.EMPTY
    pending = PendingRange(table, intent.range, entries, RangeStage.INTENT_COMMITTED, replay=True)
    rows = sum(entry.rows for entry in pending.stored)
    if rows != intent.rows and not compacted:
        raise ReplayImpossible(f"{where}: {rows} rows rebuilt, the intent has {intent.rows}")
    return pending
