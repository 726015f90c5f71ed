"""Schema ids. The lock file in the package gives every committed schema version an id that never changes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Protocol

from drumline.schemas.errors import BadSchema, UnknownSchema
from drumline.schemas.model import AVRO, RecordModel, model, parse_model


class Registry(Protocol):
    """Where ids come from. Ids and schemas are answered from memory after the first time."""

    def id_of(self, topic: str) -> int:
        """The id to write the topic's current schema with. Raises KeyError for a topic without a schema."""

    def id_of_version(self, topic: str, fingerprint: str) -> int:
        """The id of the version with that fingerprint (model.fingerprint), maybe an older one. Raises UnknownSchema, or
        RegistryUnavailable."""

    def model_of(self, schema_id: int) -> RecordModel:
        """The schema that a record was written with; the very object `model(topic)` if it is the current one.
        Raises UnknownSchema, or RegistryUnavailable if it cannot be asked."""

    def in_memory(self, schema_id: int) -> bool:
        """Whether `model_of` answers at once. Else it may take as long as a network takes."""


class LockFileRegistry:
    """Ids from schemas/avro/lock.json; no network. Written by `python -m drumline.schemas.release`."""

    def __init__(self, root: Path = AVRO) -> None:
        self._root = root
        lock = json.loads((root / "lock.json").read_text())
        self._latest = {topic: versions[-1] for topic, versions in lock.items()}
        self._versions = {v["id"]: (topic, v) for topic, versions in lock.items() for v in versions}
        self._ids: dict[str, int] = {}
        self._models: dict[int, RecordModel] = {}

    def id_of(self, topic: str) -> int:
        number = self._ids.get(topic)
        if number is None:
            latest = self._latest[topic]
            if model(topic).fingerprint != latest["sha256"]:
                raise BadSchema(f"{topic}.avsc is newer than its lock: run python -m drumline.schemas.release --add")
            number = self._ids[topic] = int(latest["id"])
        return number

    def id_of_version(self, topic: str, fingerprint: str) -> int:
        for number, (name, version) in self._versions.items():
            if name == topic and version["sha256"] == fingerprint:
                return int(number)
        raise UnknownSchema(f"{topic}: a version of its schema that this drumline does not know; upgrade it")

    def model_of(self, schema_id: int) -> RecordModel:
        found = self._models.get(schema_id)
        if found is None:
            if schema_id not in self._versions:
                raise UnknownSchema(f"schema id {schema_id} is not in the lock file")
            topic, version = self._versions[schema_id]
            current = model(topic)
            same = current.fingerprint == version["sha256"]
            found = current if same else parse_model(topic, (self._root / version["file"]).read_text())
            self._models[schema_id] = found
        return found

    def in_memory(self, schema_id: int) -> bool:
        return True


@cache
def lock_file_registry() -> LockFileRegistry:
    return LockFileRegistry()
