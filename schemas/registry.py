"""Schema ids. The lock file in the repo gives every committed schema version an id that never changes."""

from __future__ import annotations

import json
from functools import cache
from typing import Protocol

from drumline.schemas.errors import UnknownSchema
from drumline.schemas.model import AVRO, RecordModel, model, parse_model


class Registry(Protocol):
    """Where ids come from. Both calls answer from memory after the first time."""

    def id_of(self, topic: str) -> int:
        """The id to write the topic's current schema with. Raises KeyError for a topic without a schema."""

    def model_of(self, schema_id: int) -> RecordModel:
        """The schema that a record was written with. Raises UnknownSchema."""


class LockFileRegistry:
    """Ids from schemas/avro/lock.json; no network. Released versions are kept beside the current one."""

    def __init__(self) -> None:
        lock = json.loads((AVRO / "lock.json").read_text())
        self._ids: dict[str, int] = {topic: versions[-1]["id"] for topic, versions in lock.items()}
        self._files = {v["id"]: (topic, v["file"]) for topic, versions in lock.items() for v in versions}
        self._models: dict[int, RecordModel] = {}

    def id_of(self, topic: str) -> int:
        return self._ids[topic]

    def model_of(self, schema_id: int) -> RecordModel:
        if schema_id not in self._models:
            if schema_id not in self._files:
                raise UnknownSchema(f"schema id {schema_id} is not in the lock file")
            topic, file = self._files[schema_id]
            current = model(topic)
            text = (AVRO / file).read_text()
            self._models[schema_id] = current if text == current.text else parse_model(topic, text)
        return self._models[schema_id]


@cache
def lock_file_registry() -> LockFileRegistry:
    return LockFileRegistry()
