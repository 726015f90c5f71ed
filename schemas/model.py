"""What one topic's records look like: the parsed .avsc, its columns and its dictionaries."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import fastavro
import numpy as np

from drumline.schemas.columns import LOGICAL_TYPE, Column

AVRO = resources.files("drumline.schemas") / "avro"

#: Fields that every envelope carries, in this order; see any .avsc for their meaning.
IDENTITY = ("job", "run", "rank", "local_rank", "world_size", "host", "gpu_uuid", "process_id")


@dataclass(frozen=True)
class RecordModel:
    """One schema version. `parsed` is fastavro's form; `columns` and `dictionaries` are in schema order."""

    topic: str
    text: str
    parsed: dict[str, Any]
    columns: tuple[Column, ...]
    dictionaries: tuple[str, ...]
    fields: tuple[str, ...]


def parse_model(topic: str, text: str) -> RecordModel:
    """Parse an .avsc. Raises ValueError (fastavro.schema.SchemaParseException) on a bad schema."""
    raw = json.loads(text)
    columns = []
    dictionaries = []
    for field in raw["fields"]:
        kind = field["type"]
        if isinstance(kind, dict) and kind.get("logicalType") == LOGICAL_TYPE:
            columns.append(
                Column(
                    name=field["name"],
                    dtype=np.dtype(kind["dtype"]),
                    delta=kind["encoding"] == "delta",
                    base=bool(kind.get("base", False)),
                    dictionary=kind.get("dictionary", ""),
                )
            )
            if kind.get("dictionary") and kind["dictionary"] not in dictionaries:
                dictionaries.append(kind["dictionary"])
    parsed = fastavro.parse_schema(raw, named_schemas={})
    assert isinstance(parsed, dict)
    names = tuple(field["name"] for field in raw["fields"])
    return RecordModel(topic, text, parsed, tuple(columns), tuple(dictionaries), names)


@cache
def model(topic: str) -> RecordModel:
    """The current model of a topic of ours. Raises KeyError for a topic that has none."""
    path = AVRO / f"{topic}.avsc"
    if not path.is_file():
        raise KeyError(topic)
    return parse_model(topic, path.read_text())
