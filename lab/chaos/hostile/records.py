"""Generate hostile Kafka records from the Avro schemas: every topic, every field, and the bytes around them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from drumline.lab.chaos.hostile.values import HUGE, Draft, body, column_values, envelope_values, plausible
from drumline.schemas.bounds.limits import MAX_BYTES, MAX_ROWS
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.model import RecordModel, has_schema, model
from drumline.schemas.topics import DERIVED_TOPICS, TOPICS, Topic

#: Jobs that send hostile records, each of two ranks.
JOBS = 20
ROWS = 6
#: Bytes in the columns of a large record: just below the bound of a record, and above it.
LARGE_BYTES = (MAX_BYTES - 20_000, 2 * MAX_BYTES)
GARBAGE_BYTES = 3_000


@dataclass(frozen=True, slots=True)
class HostileRecord:
    """Holds one record. `attack`: topic, field and kind, for messages."""

    topic: Topic
    key: bytes | None
    value: bytes | None
    attack: str


Make = Callable[["Writer", random.Random, Sequence[str]], HostileRecord]


class Writer:
    """Writes records of one topic: the next plausible draft of a job, and its bytes."""

    def __init__(self, topic: Topic, codec: Codec, namespace: str) -> None:
        self.topic, self.model = topic, model(topic)
        self.header = header(codec.registry.id_of(topic))
        self.other = header(codec.registry.id_of(Topic.KERNEL if topic != Topic.KERNEL else Topic.MEMCPY))
        self._namespace, self._numbers = namespace, count()

    def draft(self, rows: int = 0) -> Draft:
        """Return the next draft: it comes from another job and rank than the one before."""
        number = next(self._numbers)
        job, rank, sequence = f"hostile-{number % JOBS}", number // JOBS % 2, number // JOBS // 2
        source = {"job": job, "run": f"{job}-{self._namespace}", "rank": rank, "local_rank": rank, "world_size": 2}
        source |= {"host": f"h{rank}", "gpu_uuid": f"GPU-{rank}", "sequence": sequence, "communicator": "c"}
        source["process_id"] = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{self._namespace} {job} {rank}"))
        known = {name: value for name, value in source.items() if name in self.model.envelope}
        return plausible(self.model, known, rows or (ROWS if self.model.columns else 1), sequence * ROWS)

    def plain(self, attack: str = "") -> HostileRecord:
        """Return the record of the next draft as it is."""
        return self.record(self.draft(), f"{self.topic} {attack}")

    def record(self, draft: Draft, attack: str) -> HostileRecord:
        """Return the record of a draft, with the key that its producer would use."""
        text = (
            draft["job"]
            if self.topic in (Topic.STEP, Topic.HOST, Topic.STACK, Topic.LATENESS, Topic.STRAGGLER)
            else draft["process_id"]
        )
        if self.topic == Topic.COLLECTIVE:
            text = b"%s:%s" % tuple(part if isinstance(part, bytes) else part.encode() for part in (draft["job"], "c"))
        elif self.topic in (Topic.NETWORK, Topic.CHECK):
            text = draft["host"]
        elif self.topic == Topic.DEVICE:
            text = draft["job"] or draft["gpu_uuid"]
        key = text if isinstance(text, bytes) else str(text).encode()
        return HostileRecord(self.topic, key[:HUGE], self.header + body(self.model, draft), attack)


def hostile_records(seed: int, victims: Sequence[str] = ()) -> Iterator[HostileRecord]:
    """Yield hostile records for ever, at random: every kind comes once before any comes again.

    `victims`: process ids of another job, under which some records are sent.
    """
    rng, codec = random.Random(seed), Codec()
    topics = [spec.topic for spec in TOPICS if has_schema(spec.topic)]
    writers = [Writer(topic, codec, str(seed)) for topic in topics]
    makers = [(writer, make) for writer in writers for make in attacks(writer.model, rng)]
    while True:
        for writer, make in rng.sample(makers, len(makers)):
            yield make(writer, rng, victims)


def attacks(model: RecordModel, rng: random.Random) -> Iterator[Make]:
    """Yield every kind of attack on a topic: each value of each field, then those on the record as a whole."""
    for name, kind in model.envelope.items():
        for number, _ in enumerate(envelope_values(name, kind)):
            yield _envelope(name, kind, number)
    for column in model.columns:
        for number, _ in enumerate(column_values(column.dtype, ROWS, rng)):
            yield _column(column.name, number)
    yield from RECORDS if model.topic in DERIVED_TOPICS else (*RECORDS, *RECORDS)  # only workers write those


def _envelope(name: str, kind: str, number: int) -> Make:
    def make(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
        value = next(value for at, value in enumerate(envelope_values(name, kind)) if at == number)
        return writer.record(writer.draft() | {name: value}, f"{writer.topic}.{name} value {number}")

    return make


def _column(name: str, number: int) -> Make:
    def make(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
        dtype = next(column.dtype for column in writer.model.columns if column.name == name)
        value = next(value for at, value in enumerate(column_values(dtype, ROWS, rng)) if at == number)
        return writer.record(writer.draft() | {name: value}, f"{writer.topic}.{name} column {number}")

    return make


def _bytes(attack: str, change: Callable[[HostileRecord, random.Random, Writer], HostileRecord]) -> Make:
    def make(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
        return change(writer.plain(attack), rng, writer)

    return make


def _valued(attack: str, change: Callable[[bytes, random.Random, Writer], bytes | None]) -> Make:
    def replace(record: HostileRecord, rng: random.Random, writer: Writer) -> HostileRecord:
        return HostileRecord(record.topic, record.key, change(record.value or b"", rng, writer), record.attack)

    return _bytes(attack, replace)


def _keyed(attack: str, key: bytes | None) -> Make:
    return _bytes(attack, lambda record, rng, writer: HostileRecord(record.topic, key, record.value, record.attack))


def _flipped(value: bytes, rng: random.Random, writer: Writer) -> bytes:
    data = bytearray(value)
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(5, len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _foreign(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
    draft = writer.draft()
    if victims:
        draft |= {"process_id": rng.choice(victims), "sequence": rng.randrange(200)}
    return writer.record(draft, f"{writer.topic} process id of another job")


def _duplicate(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
    return writer.record(writer.draft() | {"sequence": 0}, f"{writer.topic} sequence again, with other rows")


def _repeated(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
    draft = writer.draft()
    windows = {"first_step": 0, "last_step": ROWS - 1, "window_start_ns": 0, "window_end_ns": 10**9, "revision": 0}
    draft |= {name: value for name, value in windows.items() if name in draft}
    draft |= {column.name: draft[column.name] * 0 for column in writer.model.columns if column.name == "step"}
    return writer.record(draft, f"{writer.topic} window again")


def _large(writer: Writer, rng: random.Random, victims: Sequence[str]) -> HostileRecord:
    row_bytes = sum(column.dtype.itemsize for column in writer.model.columns)
    rows = min(MAX_ROWS, rng.choice(LARGE_BYTES) // row_bytes) if row_bytes else 1
    return writer.record(writer.draft(rows), f"{writer.topic} of {rows} rows")


RECORDS: tuple[Make, ...] = (
    _valued("null value", lambda value, rng, writer: None),
    _valued("empty value", lambda value, rng, writer: b""),
    _valued("magic byte", lambda value, rng, writer: b"\1" + value[1:]),
    _valued("unknown schema id", lambda value, rng, writer: header(rng.randrange(1 << 20, 1 << 32)) + value[5:]),
    _valued("schema id of another topic", lambda value, rng, writer: writer.other + value[5:]),
    _valued("truncated", lambda value, rng, writer: value[: rng.randrange(len(value))]),
    _valued("bytes at the end", lambda value, rng, writer: value + rng.randbytes(rng.randint(1, 40))),
    _valued("garbage", lambda value, rng, writer: rng.randbytes(rng.randrange(GARBAGE_BYTES))),
    _valued("garbage in a frame", lambda value, rng, writer: value[:5] + rng.randbytes(rng.randrange(GARBAGE_BYTES))),
    _valued("flipped bits", _flipped),
    _keyed("no key", None),
    _keyed("empty key", b""),
    _keyed("another key", b"chaos"),
    _keyed("key that is no text", b"\xff\xfe:\x00"),
    _keyed("huge key", b"k" * 100_000),
    _foreign,
    _duplicate,
    _repeated,
    _large,
)
