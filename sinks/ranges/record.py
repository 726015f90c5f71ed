"""One Kafka record on its way into a range: what it holds and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord
from drumline.sinks.tables.blocks import row_count, time_span, unstorable
from drumline.sinks.tables.tables import Table


class Verdict(StrEnum):
    """`EMPTY`: read and right, but without rows. `DUPLICATE`: the same batch is stored from another offset."""

    STORED = "stored"
    EMPTY = "empty"
    DUPLICATE = "duplicate"
    DEAD = "dead"


@dataclass(slots=True)
class Record:
    """A Kafka record as it came. `timestamp_ms`: the record's, -1 if it has none."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]

    @property
    def key_text(self) -> str:
        """The key as text; bytes that are not UTF-8 show as \\xNN."""
        return (self.key or b"").decode("utf-8", "backslashreplace")


@dataclass(slots=True)
class Entry:
    """`batch` is None for a tombstone and for what does not decode. `rows`: rows of its table if it is stored. `error`:
    the error's type and sentence, for the ledger and the dead letter. `record.value` is kept for dead ones only."""

    record: Record
    size: int
    batch: Batch | None
    verdict: Verdict
    rows: int = 0
    time_min: int = 0
    time_max: int = 0
    error: tuple[str, str] = ("", "")


def read(record: Record, table: Table, codec: Codec) -> Entry:
    """Decode and check a record. Duplicates are judged later, when its range is cut."""
    size = len(record.value or b"")
    if record.value is None and table.upsert:  # a tombstone: the key is gone from the compacted topic
        return Entry(record, 0, None, Verdict.EMPTY)
    try:
        batch = codec.decode(table.topic, record.value)
    except BadRecord as error:
        return Entry(record, size, None, Verdict.DEAD, error=(type(error).__name__, str(error)))
    reason = unstorable(table, batch)
    if reason:
        return Entry(record, size, batch, Verdict.DEAD, error=("Unstorable", reason))
    record.value = None
    rows = row_count(table, batch)
    first, last = time_span(table, batch)
    return Entry(record, size, batch, Verdict.STORED if rows else Verdict.EMPTY, rows, first, last)
