"""Convert Kafka values to batches and back: wire format, registry and Avro in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drumline.schemas.avro_read import number_behind
from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.batch_table import BatchTable
from drumline.schemas.bounds.check import check, check_columns, check_envelope, check_size, checks_together
from drumline.schemas.compatibility import unreadable
from drumline.schemas.confluent import HEADER, header, schema_id
from drumline.schemas.dead_letters import Header
from drumline.schemas.epochs import EPOCH_HEADER, is_ahead, read_epoch
from drumline.schemas.errors import (
    BadEnvelope,
    BadRecord,
    ForeignJob,
    OutOfBounds,
    Unencodable,
    UnknownSchema,
    WrongSchema,
)
from drumline.schemas.model import JOB_ENVELOPE, RecordModel, model
from drumline.schemas.parts.encoded import encoded
from drumline.schemas.parts.merged import MERGED, SHARED, merged
from drumline.schemas.parts.parts import JOINED_BY_AGENTS, PARTS, joined, split
from drumline.schemas.parts.table import MergedParts
from drumline.schemas.registry import Registry, lock_file_registry
from drumline.schemas.tenants import OF_HOSTS, Tenant, TenantGuard
from drumline.schemas.topics import DERIVED_TOPICS

#: Bytes of a batch up to which it costs more than its rows.
SMALL_BYTES = 16 << 10
#: Registries give ids below it: 32-bit integers.
_IDS = 1 << 31


class Received(NamedTuple):
    """Holds a record of Kafka. `appended_ms`: when Kafka took it in."""

    value: bytes
    appended_ms: int
    key: bytes | None = None
    headers: Iterable[Header] | None = None


class JoinedRecord(NamedTuple):
    """Holds a record with parts that was checked, as a whole; its parts are not read yet.

    `job`: of all of them. `writer`, `id`: the schema of the parts of a table; None and 0 of a record whose parts have
    schemas of their own. `tenant`: who signed it, where the host of each part must be one of its hosts.
    """

    job: str
    record: Batch
    writer: RecordModel | None = None
    id: int = 0
    tenant: Tenant | None = None

    @property
    def unit(self) -> tuple[int, str, str] | None:
        """Return what records have in common whose tables may be read together; None for one that is read alone."""
        is_separate = self.writer is None or self.tenant is not None
        return None if is_separate else (self.id, self.job, str(self.record.envelope["run"]))


class Parts:
    """Holds the parts of a record.

    `job`: of all of them, checked as that of the record. `values`: of each. `merged`: all of them, of a record that has
    them in one table; its parts are encoded once `values` is read. `tenant`: see JoinedRecord; then there is no table.
    """

    def __init__(
        self,
        job: str,
        values: list[bytes] | None = None,
        merged: MergedParts | None = None,
        id: int = 0,
        tenant: Tenant | None = None,
    ):
        self.job, self.merged, self.tenant, self._values, self._id = job, merged, tenant, values, id

    def check_origin(self, topic: str, envelope: Mapping[str, Any]) -> None:
        """Accept a part. Fatal for the record: ForeignJob, ForeignHost."""
        if envelope["job"] != self.job:
            raise ForeignJob("the job is none of its record's", topic=topic, field="job")
        if self.tenant is not None:
            self.tenant.check_host(topic, envelope["host"])

    @property
    def values(self) -> list[bytes]:
        """Return the value of each part. Raises BadRecord for parts that no producer can have encoded."""
        if self._values is None:
            assert self.merged is not None
            of, frame = self.merged, header(self._id)
            of.check_widths()
            try:
                self._values = encoded(of, frame) or [
                    encode(of.writer, of.written(part), frame) for part in range(of.parts)
                ]
            except Unencodable as error:
                raise BadEnvelope(f"a part of it: {error}", topic=of.topic) from None
        return self._values


class Codec:
    """Encodes and decodes Kafka values of drumline's topics.

    Safe to share between threads. May block where the registry does (see `decodes_at_once`). `guard`: None where
    records need no signature.
    """

    def __init__(self, registry: Registry | None = None, guard: TenantGuard | None = None) -> None:
        self.registry = registry or lock_file_registry()
        self._guard = guard
        self._readable: set[tuple[int, str]] = set()
        self._shapes = {shape.name: shape for shape in map(model, (PARTS, MERGED))}

    def encode(self, batch: Batch) -> bytes:
        """Return the Kafka value of a batch.

        Raises Unencodable naming the field; KeyError for a topic without a schema.
        """
        return encode(model(batch.topic), batch, header(self.registry.id_of(batch.topic)))

    def join(self, job: str, values: Sequence[bytes]) -> bytes:
        """Return the Kafka value of a record whose parts are these values, of one topic, key and job."""
        return self.encode(joined(job, values))

    def merge(self, topic: str, values: Sequence[bytes]) -> bytes | None:
        """Return the Kafka value of a record with these values, of one topic and key, in one table.

        None if they do not all have the topic's current schema, and one job and run.
        """
        schema, number = model(topic), self.registry.id_of(topic)
        try:
            if any(schema_id(value, topic) != number for value in values):
                return None
            batches = [decode(schema, value, None, HEADER.size) for value in values]
        except BadRecord:
            return None
        if len({tuple(batch.envelope[name] for name in SHARED) for batch in batches}) > 1:
            return None
        return self.encode(merged(schema, number, batches))

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
        of = self.joined_record(topic, value, key, headers, bounded=bounded)
        return None if of is None else self.parts_of(topic, of)

    def joined_record(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Iterable[Header] | None = None,
        *,
        bounded: bool = True,
    ) -> JoinedRecord | None:
        """Return a record with parts; None if it is a batch itself. Options and errors: see `decode`."""
        if topic not in JOINED_BY_AGENTS:
            return None
        number = schema_id(value, topic)
        assert value is not None
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema:  # `decode` says so
            return None
        reader = self._shapes.get(writer.name)
        if reader is None:
            return None
        if (number, reader.topic) not in self._readable:
            self._check_schema(number, writer, reader)
        if bounded:
            check_size(topic, key, value, headers or ())
        record = decode(writer, value, reader, HEADER.size)
        job = str(record.envelope["job"])
        tenant = None
        if bounded and self._guard is not None:
            signer = self._guard.check(topic, key, value, headers or (), job)
            tenant = signer if topic in OF_HOSTS else None
        if reader.topic == PARTS:
            return JoinedRecord(job, record, tenant=tenant)
        number = int(record.envelope["schema"])
        if not 0 <= number < _IDS:
            raise UnknownSchema(f"schema id {number} of its parts is none", topic=topic)
        return JoinedRecord(job, record, self._writer(number, topic), number, tenant)

    def parts_of(self, topic: str, of: JoinedRecord) -> Parts:
        """Return the parts of a record. Raises BadEnvelope for parts that are none."""
        if of.writer is None:
            return Parts(of.job, split(of.record, topic), tenant=of.tenant)
        parts = Parts(of.job, merged=self.together(topic, [of]), id=of.id)
        return parts if of.tenant is None else Parts(of.job, parts.values, tenant=of.tenant)

    def together(self, topic: str, records: Sequence[JoinedRecord]) -> MergedParts:
        """Return all parts of records of one `unit`, which have tables, as one table. Raises as `MergedParts` does."""
        writer = records[0].writer
        assert writer is not None
        return MergedParts([of.record for of in records], writer, model(topic))

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
        writer = self._writer(number, topic)
        batch = decode(writer, value, reader, HEADER.size, bounded=bounded)
        if bounded:
            check(batch, appended_ms, len(value) - (batch.rows * reader.row_bytes if writer is reader else 0))
            if of is None:
                self._check_origin(topic, Received(value, appended_ms or 0, key, headers), batch.envelope)
            else:
                of.check_origin(topic, batch.envelope)
        return batch

    def decode_together(self, topic: str, records: Sequence[Received]) -> BatchTable | None:
        """Return the batches of records that need no registry (`decodes_at_once`) as a table.

        None where one of them is no batch of the topic's current schema within its bounds: `decode` shows which one.
        """
        schema, known = model(topic), [record.appended_ms for record in records if record.appended_ms > 0]
        if not checks_together(topic):
            return None
        try:
            for record in records:
                check_size(topic, record.key, record.value, record.headers or ())
                if self._writer(schema_id(record.value, topic), topic) is not schema:
                    return None
            table = BatchTable(schema, [record.value for record in records], HEADER.size)
            if table.rows:
                rows = Batch(topic, {"rows": table.rows}, table.columns)
                check_columns(rows, min(known, default=None), max(known, default=None))
            for record, envelope in zip(records, table.envelopes, strict=True):
                text_bytes = len(record.value) - envelope["rows"] * schema.row_bytes
                check_envelope(topic, envelope, record.appended_ms, text_bytes)
                self._check_origin(topic, record, envelope)
        except BadRecord:
            return None
        return table

    def _check_origin(self, topic: str, record: Received, envelope: Mapping[str, Any]) -> None:
        """Check the epoch and the signature of a record. Raises OutOfBounds, and what the guard raises."""
        if topic in DERIVED_TOPICS and is_ahead(read_epoch(record.headers)[0], record.appended_ms or 0):
            detail = f"{EPOCH_HEADER} is more than 24 hours after Kafka took the record in"
            raise OutOfBounds(detail, topic=topic)
        if self._guard is not None:
            tenant = self._guard.check(topic, record.key, record.value, record.headers or (), envelope["job"])
            if tenant is not None:
                tenant.check_host(topic, envelope["host"])

    def decodes_at_once(self, value: bytes | None) -> bool:
        """Return True if `parts` and `decode` need no network: the schemas are in memory, or the bytes name none."""
        try:
            number = schema_id(value)
            if not self.registry.in_memory(number):
                return False
            shape = self._shapes.get(self.registry.model_of(number).name)
            if value is None or shape is None or shape.topic != MERGED:
                return True
            of_parts = number_behind(JOB_ENVELOPE.values(), value, HEADER.size)
            return not 0 <= of_parts < _IDS or self.registry.in_memory(of_parts)
        except (BadRecord, IndexError, ValueError):  # `decode` says so
            return True

    def reads_together(self, topic: str, value: bytes | None) -> bool:
        """Return whether a record should be read with others: by `together`, or `decode_together` if it is small.

        Such a record, and its parts, have current schemas that are known, so it never needs the network.
        """
        try:
            if value is None or (of := self.registry.known(schema_id(value))) is None:
                return False
            if of is model(topic):
                return len(value) <= SMALL_BYTES and checks_together(topic)
            if topic not in JOINED_BY_AGENTS or of is not model(MERGED):
                return False
            of_parts = number_behind(JOB_ENVELOPE.values(), value, HEADER.size)
            return self.registry.known(of_parts) is model(topic)
        except (BadRecord, IndexError, ValueError):  # `decode` says so
            return False

    def _writer(self, number: int, topic: str) -> RecordModel:
        """Return the schema of a record of a topic, or of its parts, by its id."""
        reader = model(topic)
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema as error:
            raise UnknownSchema(error.detail, topic=topic) from None
        if writer is not reader and (number, topic) not in self._readable:
            self._check_schema(number, writer, reader)
        return writer

    def _check_schema(self, number: int, writer: RecordModel, reader: RecordModel) -> None:
        if writer.name != reader.name:
            raise WrongSchema(f"schema id {number} is {writer.name}, not this topic's", topic=reader.topic)
        if faults := unreadable(writer, reader):
            raise WrongSchema(f"schema id {number} cannot be read: {faults[0]}", topic=reader.topic)
        self._readable.add((number, reader.topic))
