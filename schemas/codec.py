"""Kafka value <-> batch: wire format, registry and batch codec in one place. What everybody calls."""

from __future__ import annotations

from drumline.schemas.batch import Batch, decode, encode
from drumline.schemas.errors import BadEnvelope
from drumline.schemas.model import model
from drumline.schemas.registry import Registry, lock_file_registry
from drumline.schemas.wire import frame, unframe


class Codec:
    """Encodes and decodes Kafka values of our topics. One a thread is not needed: it holds no mutable state."""

    def __init__(self, registry: Registry | None = None) -> None:
        self.registry = registry or lock_file_registry()

    def encode(self, batch: Batch) -> bytes:
        """The Kafka value of a batch."""
        return frame(self.registry.id_of(batch.topic), encode(model(batch.topic), batch))

    def decode(self, topic: str, value: bytes | None) -> Batch:
        """The batch in a Kafka value read from `topic`. Raises BadRecord (see errors.py), nothing else."""
        schema_id, body = unframe(value)
        writer = self.registry.model_of(schema_id)
        reader = model(topic)
        if writer.parsed["name"] != reader.parsed["name"]:
            raise BadEnvelope(f"schema id {schema_id} is {writer.parsed['name']}, not this topic's", topic=topic)
        return decode(writer, body, reader)
