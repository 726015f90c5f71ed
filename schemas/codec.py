"""Convert Kafka values to batches and back: wire format, registry and Avro in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.bounds.check import check, check_size
from drumline.schemas.compatibility import unreadable
from drumline.schemas.confluent import HEADER, header, schema_id
from drumline.schemas.dead_letters import Header
from drumline.schemas.epochs import EPOCH_HEADER, is_ahead, read_epoch
from drumline.schemas.errors import BadFrame, ForeignJob, OutOfBounds, UnknownSchema, WrongSchema
from drumline.schemas.model import RecordModel, model
from drumline.schemas.parts import JOINED_BY_AGENTS, PARTS, joined, split
from drumline.schemas.registry import Registry, lock_file_registry
from drumline.schemas.tenants import TenantGuard
from drumline.schemas.topics import DERIVED_TOPICS


class Parts(NamedTuple):
    """Holds the values of a record's parts. `job`: of all of them, checked as that of the record."""

    job: str
    values: list[bytes]


class Codec:
    """Encodes and decodes Kafka values of drumline's topics.

    Safe to share between threads. May block where the registry does (see `decodes_at_once`). `guard`: None where
    records need no signature.
    """

    def __init__(self, registry: Registry | None = None, guard: TenantGuard | None = None) -> None:
        self.registry = registry or lock_file_registry()
        self._guard = guard
        self._readable: set[tuple[int, str]] = set()

    def encode(self, batch: Batch) -> bytes:
        """Return the Kafka value of a batch.

        Raises Unencodable naming the field; KeyError for a topic without a schema.
        """
        return encode(model(batch.topic), batch, header(self.registry.id_of(batch.topic)))

    def join(self, job: str, values: Sequence[bytes]) -> bytes:
        """Return the Kafka value of a record whose parts are these values, of one topic, key and job."""
        return self.encode(joined(job, values))

    def parts(
        self,
        topic: str,
        value: bytes | None,
        *,
        bounded: bool = True,
        key: bytes | None = None,
        headers: Iterable[Header] | None = None,
    ) -> Parts | None:
        """Return the parts of a record, each to be passed to `decode`; None if it is a batch itself.

        Options and errors: see `decode`.
        """
        if topic not in JOINED_BY_AGENTS:
            return None
        number, reader = schema_id(value, topic), model(PARTS)
        assert value is not None
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema:  # `decode` says so
            return None
        if writer.name != reader.name:
            return None
        if bounded:
            check_size(topic, key, value, headers or ())
        record = decode(writer, value, reader, HEADER.size)
        job = str(record.envelope["job"])
        if bounded and self._guard is not None:
            self._guard.check(topic, key, value, headers or (), job)
        return Parts(job, split(record, topic))

    def decode(
        self,
        topic: str,
        value: bytes | None,
        appended_ms: int | None = None,
        *,
        bounded: bool = True,
        key: bytes | None = None,
        headers: Iterable[Header] | None = None,
        of: Parts | None = None,
    ) -> Batch:
        """Return the batch in a Kafka value read from `topic`.

        `appended_ms`: when Kafka took the record in; times are compared with it. `bounded`: False for a record that was
        accepted before, perhaps with wider bounds or without a signature. `key`, `headers`: the record's, for
        bounds, the guard and the epoch of a result. `of`: the record whose part the value is.

        Fatal for the record: BadRecord (errors.py), whatever the bytes are. Retry later: RegistryUnavailable, which
        is no error of the record. Raises KeyError for a topic without a schema.
        """
        reader = model(topic)
        number = schema_id(value, topic)
        assert value is not None
        if bounded:
            check_size(topic, key, value, headers or ())
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema as error:
            raise UnknownSchema(error.detail, topic=topic) from None
        if writer is not reader and (number, topic) not in self._readable:
            self._check_schema(number, writer, reader)
        batch = decode(writer, value, reader, HEADER.size, bounded=bounded)
        if bounded:
            check(batch, appended_ms, len(value) - (batch.rows * reader.row_bytes if writer is reader else 0))
            if topic in DERIVED_TOPICS and is_ahead(read_epoch(headers)[0], appended_ms or 0):
                detail = f"{EPOCH_HEADER} is more than 24 hours after Kafka took the record in"
                raise OutOfBounds(detail, topic=reader.topic)
            if of is not None and batch.envelope["job"] != of.job:
                raise ForeignJob("the job is none of its record's", topic=topic, field="job")
            if of is None and self._guard is not None:
                self._guard.check(topic, key, value, headers or (), batch.envelope["job"])
        return batch

    def decodes_at_once(self, value: bytes | None) -> bool:
        """Return True if `decode` needs no network: the schema is in memory, or the bytes name none."""
        try:
            return self.registry.in_memory(schema_id(value))
        except BadFrame:
            return True

    def _check_schema(self, number: int, writer: RecordModel, reader: RecordModel) -> None:
        if writer.name != reader.name:
            raise WrongSchema(f"schema id {number} is {writer.name}, not this topic's", topic=reader.topic)
        if faults := unreadable(writer, reader):
            raise WrongSchema(f"schema id {number} cannot be read: {faults[0]}", topic=reader.topic)
        self._readable.add((number, reader.topic))
