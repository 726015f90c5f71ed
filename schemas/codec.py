"""Convert Kafka values to batches and back: wire format, registry and Avro in one place."""

from __future__ import annotations

from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.compatibility import unreadable
from drumline.schemas.confluent import HEADER, header, schema_id
from drumline.schemas.errors import BadFrame, UnknownSchema, WrongSchema
from drumline.schemas.model import RecordModel, model
from drumline.schemas.registry import Registry, lock_file_registry


class Codec:
    """Encodes and decodes Kafka values of drumline's topics.

    Safe to share between threads. May block where the registry does (see `decodes_at_once`).
    """

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or lock_file_registry()
        self._readable: set[tuple[int, str]] = set()

    def encode(self, batch: Batch) -> bytes:
        """Return the Kafka value of a batch.

        Raises Unencodable naming the field; KeyError for a topic without a schema.
        """
        return encode(model(batch.topic), batch, header(self.registry.id_of(batch.topic)))

    def decode(self, topic: str, value: bytes | None) -> Batch:
        """Return the batch in a Kafka value read from `topic`.

        Fatal for the record: BadRecord (errors.py), whatever the bytes are. Retry later: RegistryUnavailable, which
        is no error of the record. Raises KeyError for a topic without a schema.
        """
        reader = model(topic)
        number = schema_id(value, topic)
        try:
            writer = self.registry.model_of(number)
        except UnknownSchema as error:
            raise UnknownSchema(error.detail, topic=topic) from None
        if writer is not reader and (number, topic) not in self._readable:
            self._check_schema(number, writer, reader)
        assert value is not None
        return decode(writer, value, reader, HEADER.size)

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
