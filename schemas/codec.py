"""Convert Kafka values to batches and back: wire format, registry and Avro in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drumline.schemas.avro_read import number_behind
from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.bounds.check import check, check_columns, check_envelope, check_size, checks_together
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.compatibility import unreadable
from drumline.schemas.confluent import HEADER, header, schema_id
from drumline.schemas.dead_letters import Header
from drumline.schemas.envelope import JOB_ENVELOPE
from drumline.schemas.epochs import EPOCH_HEADER, is_ahead, read_epoch
from drumline.schemas.errors import BadRecord, ForeignJob, OutOfBounds, UnknownSchema, WrongSchema
from drumline.schemas.model import RecordModel, model
from drumline.schemas.parts.encoded import part_values
from drumline.schemas.parts.joining import JOINED_BY_AGENTS
from drumline.schemas.parts.merged import MERGED, merged
from drumline.schemas.parts.table import MergedTable
from drumline.schemas.record_table import BatchTable, RecordTable
from drumline.schemas.registry import Registry, lock_file_registry
from drumline.schemas.tenants import OF_HOSTS, Tenant, TenantGuard
from drumline.schemas.topics import DERIVED_TOPICS

#: Bytes of a batch up to which it costs more than its rows.
SMALL_BYTES = 16 << 10
#: Registries give ids below it: 32-bit integers.
_IDS = 1 << 31


class Received(NamedTuple):
    """Holds a record of Kafka. `appended_ms`: when Kafka took it in; 0 = unknown."""

    value: bytes | None
    appended_ms: int = 0
    key: bytes | None = None
    headers: Iterable[Header] | None = None


class OpenRecord(NamedTuple):
    """Holds a record of which the kind is known: a batch, or a table of parts. No part is read yet.

    `unit`: what records have in common that may be read together; None for one that is read by itself. `record`: the
    record as a whole, None for a batch; `job`: of all of its parts. `writer`, `id`: the schema of the parts of a table.
    `tenant`: who signed it, where the host of each part must be one of its hosts.
    """

    received: Received
    unit: tuple[object, ...] | None = None
    job: str = ""
    record: Batch | None = None
    writer: RecordModel | None = None
    id: int = 0
    tenant: Tenant | None = None

    def check_origin(self, topic: str, envelope: Mapping[str, Any]) -> None:
        """Accept a part. Fatal for the record: ForeignJob, ForeignHost."""
        if envelope["job"] != self.job:
            raise ForeignJob("the job is none of its record's", topic=topic, field="job")
        if self.tenant is not None:
            self.tenant.check_host(topic, envelope["host"])


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

    def merge(self, topic: str, values: Sequence[bytes]) -> bytes | None:
        """Return the Kafka value of a record with these values, of one topic and key, in one table.

        None if they do not all have the topic's current schema, and one job and run, or one is damaged.
        """
        schema, number = model(topic), self.registry.id_of(topic)
        try:
            if any(schema_id(value, topic) != number for value in values):
                return None
            record = merged(schema, number, BatchTable.read(schema, values, HEADER.size))
        except BadRecord:
            return None
        return None if record is None else self.encode(record)

    def open(self, topic: str, received: Received, *, bounded: bool = True) -> OpenRecord:
        """Return a record with its kind. Option and errors: see `decode`, which names all errors of batches."""
        value = received.value
        if topic not in JOINED_BY_AGENTS:
            return OpenRecord(received, self._unit_of_batch(topic, value))
        number = schema_id(value, topic)
        assert value is not None
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema:
            return OpenRecord(received)
        reader = model(MERGED)
        if writer.name != reader.name:
            return OpenRecord(received, self._unit_of_batch(topic, value))
        if (number, MERGED) not in self._readable:
            self._check_schema(number, writer, reader)
        if bounded:
            check_size(topic, received.key, value, received.headers or ())
        record = decode(writer, value, reader, HEADER.size)
        job = str(record.envelope["job"])
        tenant = None
        if bounded and self._guard is not None:
            signer = self._guard.check(topic, received.key, value, received.headers or (), job)
            tenant = signer if topic in OF_HOSTS else None
        number = int(record.envelope["schema"])
        if not 0 <= number < _IDS:
            raise UnknownSchema(f"schema id {number} of its parts is none", topic=topic)
        unit = MERGED, number, job, str(record.envelope["run"])
        return OpenRecord(received, unit, job, record, self._writer(number, topic), number, tenant)

    def _unit_of_batch(self, topic: str, value: bytes | None) -> tuple[object, ...] | None:
        """Return the unit of a record that is a batch: those of the current schema are read together."""
        try:
            number = schema_id(value)
        except BadRecord:  # `decode` says so
            return None
        is_current = checks_together(topic) and self.registry.known(number) is model(topic)
        return (topic, number) if is_current else None

    def read(self, topic: str, records: Sequence[OpenRecord]) -> RecordTable:
        """Return all parts of records of one `unit`, or of one record, as a table.

        Raises BadRecord if one may be bad: `values` and `decode` show which one. Retry later: RegistryUnavailable.
        """
        first = records[0]
        if first.record is not None:
            return self._read_tables(topic, records)
        if len(records) > 1:
            return self._read_batches(topic, [record.received for record in records])
        return BatchTable.of([self.decode_part(topic, first.received.value, first)])

    def _read_tables(self, topic: str, records: Sequence[OpenRecord]) -> MergedTable:
        table = self.merged_table(topic, records)
        if not is_inside(table, *(record.received.appended_ms for record in records)):
            raise OutOfBounds("perhaps a part of it", topic=topic)
        tenants = {id(record.tenant): record.tenant for record in records if record.tenant is not None}
        for tenant in tenants.values():
            for host in {*table.text("host")}:
                tenant.check_host(topic, host)
        return table

    def merged_table(self, topic: str, records: Sequence[OpenRecord]) -> MergedTable:
        """Return all parts of records of one `unit`, which have tables, unchecked. Raises as `MergedTable` does."""
        writer = records[0].writer
        assert writer is not None
        tables = [record.record for record in records if record.record is not None]
        assert len(tables) == len(records), "a batch has another unit"
        return MergedTable(tables, writer, model(topic))

    def reads_at_once(self, record: OpenRecord) -> bool:
        """Return True if `read` of a record needs no network: the schemas of its parts are in memory."""
        return record.record is not None or self.decodes_at_once(record.received.value)

    def values(self, topic: str, record: OpenRecord) -> list[bytes | None]:
        """Return the value of each part of a record, for `decode`; of a batch, its own.

        Raises BadRecord for parts that no producer can have encoded.
        """
        if record.record is None:
            return [record.received.value]
        return [*part_values(self.merged_table(topic, [record]), record.id)]

    def decode(
        self,
        topic: str,
        value: bytes | None,
        appended_ms: int | None = None,
        *,
        bounded: bool = True,
        key: bytes | None = None,
        headers: Iterable[Header] | None = None,
        of: OpenRecord | None = None,
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

    def decode_part(self, topic: str, value: bytes | None, of: OpenRecord, *, bounded: bool = True) -> Batch:
        """Return one of the `values` of a record as a batch. Options and errors: see `decode`."""
        _, appended_ms, key, headers = of.received
        whole = None if of.record is None else of
        return self.decode(topic, value, appended_ms, bounded=bounded, key=key, headers=headers, of=whole)

    def _read_batches(self, topic: str, records: Sequence[Received]) -> BatchTable:
        """Return the batches of small records of the topic's current schema as a table. Raises BadRecord."""
        schema, known = model(topic), [record.appended_ms for record in records if record.appended_ms > 0]
        for record in records:
            check_size(topic, record.key, record.value, record.headers or ())
        table = BatchTable.read(schema, [record.value or b"" for record in records], HEADER.size)
        if table.rows:
            rows = Batch(topic, {"rows": table.rows}, {**table.columns})
            check_columns(rows, min(known, default=None), max(known, default=None))
        for record, envelope in zip(records, table.envelopes, strict=True):
            text_bytes = len(record.value or b"") - envelope["rows"] * schema.row_bytes
            check_envelope(topic, envelope, record.appended_ms, text_bytes)
            self._check_origin(topic, record, envelope)
        return table

    def _check_origin(self, topic: str, record: Received, envelope: Mapping[str, Any]) -> None:
        """Check the epoch and the signature of a record. Raises OutOfBounds, and what the guard raises."""
        if topic in DERIVED_TOPICS and is_ahead(read_epoch(record.headers)[0], record.appended_ms or 0):
            detail = f"{EPOCH_HEADER} is more than 24 hours after Kafka took the record in"
            raise OutOfBounds(detail, topic=topic)
        if self._guard is not None:
            tenant = self._guard.check(topic, record.key, record.value or b"", record.headers or (), envelope["job"])
            if tenant is not None:
                tenant.check_host(topic, envelope["host"])

    def decodes_at_once(self, value: bytes | None) -> bool:
        """Return True if reading needs no network: the schemas are in memory, or the bytes name none."""
        try:
            number = schema_id(value)
            if not self.registry.in_memory(number):
                return False
            if value is None or self.registry.model_of(number).name != model(MERGED).name:
                return True
            of_parts = number_behind(JOB_ENVELOPE.values(), value, HEADER.size)
            return not 0 <= of_parts < _IDS or self.registry.in_memory(of_parts)
        except (BadRecord, IndexError, ValueError):  # `decode` says so
            return True

    def reads_together(self, topic: str, value: bytes | None) -> bool:
        """Return whether a record should be read with others by `read`: a table, or a small batch.

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
