"""A record of Kafka in the sink, and its entry in a range: its batch, and its disposition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import header_bytes
from drumline.schemas.bounds.limits import MAX_KEY_BYTES
from drumline.schemas.parts.joining import position
from drumline.sinks.tables.blocks import TIME_END_NS

#: Python objects of a record beside its bytes. Measured: 3.4 to 5.7 kB for a batch of one row.
OBJECT_BYTES = 6_000
#: The same of a part that shares columns with others. Measured: 1.3 kB, and more again while it is read and written.
PART_BYTES = 3_000
#: Python objects of a record that is not read yet, and of each of its headers, beside their bytes. Measured: 366, and
#: 150 for a header; as much again is left for what the allocator does not give back.
WAITING_BYTES, HEADER_BYTES = 700, 300
#: Error of a batch that Kafka's client cannot unpack. Its range ends with it, so `range_last` of its ledger row is its
#: last offset.
UNREADABLE = "UnreadableBatch"


class Disposition(StrEnum):
    """Names the fate of one record.

    `EMPTY`: valid, but without rows. `DUPLICATE`: the same batch is stored from another offset. `FENCED`: a result of a
    stream worker that had lost its partition. `EXPIRED`: older than its table keeps rows when the sink took it.
    `FORGOTTEN`: any of the others, until `drumline forget` deleted its job.
    """

    STORED = "stored"
    EMPTY = "empty"
    DUPLICATE = "duplicate"
    FENCED = "fenced"
    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class Record:
    """Holds a Kafka record as it came, or a part of it. `timestamp_ms`, `leader_epoch`: -1 if it has none.

    `part`: its number from 1 (schemas/parts/joining.py); 0 = a whole record.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]]
    leader_epoch: int = -1
    part: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Return (topic, partition, position)."""
        return self.topic, self.partition, self.position

    @property
    def position(self) -> int:
        """Return the number of the record or part in its partition."""
        return position(self.offset, self.part)

    @property
    def size(self) -> int:
        """Return the bytes of value, key and headers."""
        return len(self.value or b"") + len(self.key or b"") + header_bytes(self.headers)

    @property
    def memory(self) -> int:
        """Return about how many bytes of memory the record takes, as it came."""
        return self.size + WAITING_BYTES + HEADER_BYTES * len(self.headers)

    @property
    def published_ms(self) -> int:
        """Return when Kafka received the record, as the ledger stores it; ms since the epoch."""
        return published_ms(self.timestamp_ms)

    @property
    def key_text(self) -> str:
        r"""Return the key as text, cut where it is out of bounds; bytes that are not UTF-8 show as \xNN."""
        return (self.key or b"")[:MAX_KEY_BYTES].decode("utf-8", "backslashreplace")


def key_texts(records: Iterable[Record]) -> list[str]:
    """Return the `key_text` of each record; many have the same key."""
    known: dict[bytes | None, str] = {}
    return [known.get(record.key) or known.setdefault(record.key, record.key_text) for record in records]


def published_ms(timestamp_ms: int) -> int:
    """Return a record's time in Kafka (-1 = none) as the ledger stores it; ms since the epoch."""
    return min(max(timestamp_ms, 0), TIME_END_NS // 1_000_000 - 1)


@dataclass(slots=True)
class RangeEntry:
    """Holds a record, or a part of one, with its batch and disposition.

    `batch`: None for a tombstone and for a record that does not decode. `size`: bytes of value, key and headers.
    `rows`: rows of its table if it is stored. `time_min`, `time_max`: ns since the epoch. `repeats_ms`: when Kafka got
    the batch that a duplicate repeats, ms since the epoch; 0 = unknown. `error`: type and message, for the ledger and
    the dead letter. `content`: hash of the value (see `content_hash`). `record.value` and `.headers` are kept for dead
    letters only. `epoch`, `source`: of a result (schemas/epochs.py); None and "" for other records. `objects`: bytes of
    memory of its Python objects. `batch_last`: last offset of a batch that cannot be unpacked; -1 = of a record.
    """

    record: Record
    size: int
    batch: Batch | None
    disposition: Disposition
    rows: int = 0
    time_min: int = 0
    time_max: int = 0
    repeats_ms: int = 0
    error: tuple[str, str] = ("", "")
    content: int = 0
    epoch: int | None = None
    source: str = ""
    objects: int = OBJECT_BYTES
    batch_last: int = -1
    _place: tuple[str, str, int] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def place(self) -> tuple[str, str, int] | None:
        """Return (process, key, sequence) of a batch; None where it names no process."""
        if self._place is None and self.batch is not None and (process := self.batch.envelope["process_id"]):
            self._place = process, self.record.key_text, self.batch.envelope["sequence"]
        return self._place

    def expire(self, until_ms: int) -> None:
        """Make rows `EXPIRED` that Kafka got by `until_ms`, ms since the epoch; 0 = the table keeps them for ever."""
        if until_ms and self.disposition is Disposition.STORED and self.record.published_ms <= until_ms:
            self.disposition = Disposition.EXPIRED

    @property
    def last(self) -> int:
        """Return the last offset that the entry accounts for."""
        return max(self.record.offset, self.batch_last)

    @property
    def memory(self) -> int:
        """Return about how many bytes of memory the entry takes."""
        return self.size + self.objects

    @property
    def names(self) -> int:
        """Return how many names of kernels the record has."""
        return 0 if self.batch is None else len(self.batch.envelope.get("names", ()))
