"""Map schema versions to ids. The lock file in the package gives every committed version an id that never changes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Protocol

from drumline.schemas.errors import BadSchema, UnknownSchema
from drumline.schemas.model import AVRO, RecordModel, model, parse_model


class Registry(Protocol):
    """Assigns ids to schema versions; answers are cached. May block for a network request unless `in_memory`."""

    def id_of(self, topic: str) -> int:
        """Return the id to write the topic's current schema with. Raises KeyError for a topic without a schema."""

    def id_of_version(self, topic: str, fingerprint: str) -> int:
        """Return the id of the version with that fingerprint (model.fingerprint), perhaps an older one.

        Fatal: UnknownSchema. Retry later: RegistryUnavailable.
        """

    def model_of(self, schema_id: int) -> RecordModel:
        """Return the schema that a record was written with; the same object as `model(topic)` if it is the current one.

        Fatal: UnknownSchema. Retry later: RegistryUnavailable.
        """

    def in_memory(self, schema_id: int) -> bool:
        """Return True if `model_of` answers without a network request."""

    def known(self, schema_id: int) -> RecordModel | None:
        """Return what `model_of` returns, if it is in memory; then it stays there."""


class LockFileRegistry:
    """Reads ids from schemas/avro/lock.json, without network. `python -m drumline.schemas.release` writes the file."""

    def __init__(self, root: Path = AVRO) -> None:
        self._root = root
        lock = json.loads((root / "lock.json").read_text())
        self._latest = {topic: versions[-1] for topic, versions in lock.items()}
        self._versions = {v["id"]: (topic, v) for topic, versions in lock.items() for v in versions}
        self._ids: dict[str, int] = {}
        self._models: dict[int, RecordModel] = {}

    def id_of(self, topic: str) -> int:
        """Return the id of the topic's latest released schema.

        Raises:
            BadSchema: the topic's schema file differs from its latest release.
        """
        number = self._ids.get(topic)
        if number is None:
            latest = self._latest[topic]
            if model(topic).fingerprint != latest["sha256"]:
                raise BadSchema(f"{topic}.avsc is newer than its lock: run python -m drumline.schemas.release --add")
            number = self._ids[topic] = int(latest["id"])
        return number

    def id_of_version(self, topic: str, fingerprint: str) -> int:
        """Return the id of the topic's released schema with this fingerprint.

        Raises:
            UnknownSchema: no release has it.
        """
        for number, (name, version) in self._versions.items():
            if name == topic and version["sha256"] == fingerprint:
                return int(number)
        raise UnknownSchema(f"{topic}: its schema has a version that this drumline does not have; upgrade drumline")

    def model_of(self, schema_id: int) -> RecordModel:
        """Return the released schema with this id.

        Raises:
            UnknownSchema: the lock file does not have the id.
        """
        record_model = self._models.get(schema_id)
        if record_model is None:
            if schema_id not in self._versions:
                raise UnknownSchema(f"schema id {schema_id} is not in the lock file")
            topic, version = self._versions[schema_id]
            current = model(topic)
            same = current.fingerprint == version["sha256"]
            record_model = current if same else parse_model(topic, (self._root / version["file"]).read_text())
            self._models[schema_id] = record_model
        return record_model

    def in_memory(self, schema_id: int) -> bool:
        """Return True: no call needs the network."""
        return True

    def known(self, schema_id: int) -> RecordModel | None:
        """Return the released schema with this id, None if the lock file does not have it."""
        return self.model_of(schema_id) if schema_id in self._versions else None


@cache
def lock_file_registry() -> LockFileRegistry:
    """Return the registry of the installed package."""
    return LockFileRegistry()
