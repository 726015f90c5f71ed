"""A registry that knows one version of a topic's schema before today's, made up: today's without its last field."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from drumline.schemas.model import AVRO, RecordModel, fingerprint, model, parse_model
from drumline.schemas.registry import LockFileRegistry


def without_last_field(topic: str) -> RecordModel:
    """Return the older version. The field that it lacks has a default."""
    schema = json.loads(model(topic).text)
    assert "default" in schema["fields"].pop()
    return parse_model(topic, json.dumps(schema))


def registry_with_older(topic: str, folder: Path) -> tuple[LockFileRegistry, int]:
    """Return the registry, and the id of the older version. `folder`: a new one, which gets a copy of the schemas."""
    shutil.copytree(AVRO, folder)
    lock = json.loads((folder / "lock.json").read_text())
    text, file = without_last_field(topic).text, f"released/{topic}.older.avsc"
    (folder / "released").mkdir(exist_ok=True)
    (folder / file).write_text(text)
    number = 1 + max(version["id"] for versions in lock.values() for version in versions)
    lock[topic].insert(0, {"version": 0, "id": number, "file": file, "sha256": fingerprint(text)})
    (folder / "lock.json").write_text(json.dumps(lock))
    return LockFileRegistry(folder), number
