"""Describe the records of each topic: the parsed .avsc, its columns and its dictionaries."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import fastavro
import numpy as np

from drumline.schemas.columns import DTYPES, LOGICAL_TYPE, Column
from drumline.schemas.envelope import ENVELOPE, JOB_ENVELOPE
from drumline.schemas.errors import BadSchema

AVRO = Path(str(resources.files("drumline.schemas"))) / "avro"

#: Avro types that an envelope field may have: a scalar, or "array<...>", "map<...>" of one.
SCALARS = ("string", "int", "long", "double", "boolean")


@dataclass(frozen=True)
class RecordModel:
    """Describes one schema version.

    `parsed`: fastavro's form. `columns`, `dictionaries`: in schema order. `envelope`: the other fields and their types,
    as "int" or "array<string>". `shared`: the first of them, ENVELOPE's or JOB_ENVELOPE's. `defaults`: fields that have
    one. `parts`: the record in writing order; runs of envelope fields are Avro records of their own, columns stand
    alone.
    """

    topic: str
    text: str
    parsed: dict[str, Any]
    columns: tuple[Column, ...]
    dictionaries: tuple[str, ...]
    fields: tuple[str, ...]
    envelope: dict[str, str]
    shared: tuple[str, ...]
    defaults: dict[str, Any]
    fingerprint: str
    parts: tuple[Column | dict[str, Any], ...]

    @property
    def name(self) -> str:
        """Return the record's full Avro name."""
        return str(self.parsed["name"])

    @cached_property
    def row_bytes(self) -> int:
        """Return the bytes of a row in all columns."""
        return sum(column.dtype.itemsize for column in self.columns)

    @cached_property
    def structure(self) -> list[tuple[str, str, tuple[str, ...]]]:
        """Return name and type of each field, in writing order, and the types of an array's or map's items."""
        kinds = [(name, self.envelope.get(name, "bytes")) for name in self.fields]
        return [(name, kind, _item_types(kind)) for name, kind in kinds]

    @cached_property
    def narrow(self) -> list[tuple[str, bool]]:
        """Return the fields of Avro's `int`, and whether each is an array."""
        return [(name, kind != "int") for name, kind in self.envelope.items() if kind in ("int", "array<int>")]

    @property
    def topic_fields(self) -> tuple[str, ...]:
        """Return the fields after the shared ones, columns included."""
        return self.fields[len(self.shared) :]


def _item_types(kind: str) -> tuple[str, ...]:
    if kind.startswith("map"):
        return "string", kind[4:-1]
    return (kind[6:-1],) if kind.startswith("array") else ()


def fingerprint(text: str) -> str:
    """Return the SHA-256 of a schema without its docs and layout: equal if and only if the bytes mean the same."""

    def bare(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: bare(value) for key, value in node.items() if key != "doc"}
        return [bare(value) for value in node] if isinstance(node, list) else node

    return hashlib.sha256(json.dumps(bare(json.loads(text)), sort_keys=True).encode()).hexdigest()


def _column(name: str, kind: dict[str, Any]) -> Column:
    if kind.get("type") != "bytes" or kind.get("dtype") not in DTYPES or kind.get("encoding") not in ("plain", "delta"):
        raise BadSchema(f"{name}: a column is bytes with dtype one of {', '.join(DTYPES)}, encoding plain or delta")
    column = Column(
        name=name,
        dtype=np.dtype(kind["dtype"]),
        delta=kind["encoding"] == "delta",
        base=kind.get("base", False) is True,
        dictionary=kind.get("dictionary", ""),
        fill=kind.get("fill", 0),
    )
    if column.delta and column.dtype.kind == "f":
        raise BadSchema(f"{name}: floats do not round-trip as deltas")
    if column.base and not (column.delta and column.dtype == np.dtype("<i8")):
        raise BadSchema(f"{name}: base needs encoding delta and dtype <i8")
    if column.dictionary and column.dtype.kind != "u":
        raise BadSchema(f"{name}: a dictionary index is unsigned")
    try:
        np.array([], column.dtype).dtype.type(column.fill)
    except (OverflowError, TypeError, ValueError):
        raise BadSchema(f"{name}: fill {column.fill!r} is not a {column.dtype}") from None
    return column


def _envelope_type(name: str, kind: Any) -> str:
    if isinstance(kind, dict):
        inner = kind.get("items" if kind.get("type") == "array" else "values")
        if kind.get("type") in ("array", "map") and inner in SCALARS:
            return f"{kind['type']}<{inner}>"
    elif kind in SCALARS:
        return str(kind)
    raise BadSchema(f"{name}: neither a column nor an envelope type ({', '.join(SCALARS)}, array or map of one)")


def parse_model(topic: str, text: str) -> RecordModel:
    """Parse an .avsc. Raises BadSchema where it breaks Avro's rules or drumline's (docs/reference/record-format.md)."""
    try:
        raw = json.loads(text)
        parsed: Any = fastavro.parse_schema(raw, named_schemas={})
        fields = raw["fields"]
    except Exception as error:  # fastavro and JSON raise many kinds
        raise BadSchema(f"{topic}: not an Avro record schema ({type(error).__name__}: {error})") from None
    columns: list[Column] = []
    envelope: dict[str, str] = {}
    for field in fields:
        kind = field["type"]
        if isinstance(kind, dict) and kind.get("logicalType") == LOGICAL_TYPE:
            columns.append(_column(field["name"], kind))
        else:
            envelope[field["name"]] = _envelope_type(field["name"], kind)
    shared = ENVELOPE if "rank" in envelope else JOB_ENVELOPE
    if list(envelope.items())[: len(shared)] != list(shared.items()):
        raise BadSchema(f"{topic}: a record starts with the fields {', '.join(shared)}")
    dictionaries = tuple(dict.fromkeys(column.dictionary for column in columns if column.dictionary))
    for dictionary in dictionaries:
        if envelope.get(dictionary) != "array<string>":
            raise BadSchema(f"{topic}: dictionary {dictionary} is not a field of type array<string>")
    names = tuple(field["name"] for field in fields)
    defaults = {field["name"]: field["default"] for field in fields if "default" in field}
    parts = _parts(raw, {column.name: column for column in columns})
    return RecordModel(
        topic,
        text,
        parsed,
        tuple(columns),
        dictionaries,
        names,
        envelope,
        tuple(shared),
        defaults,
        fingerprint(text),
        parts,
    )


def _parts(raw: dict[str, Any], columns: dict[str, Column]) -> tuple[Column | dict[str, Any], ...]:
    parts: list[Column | dict[str, Any]] = []
    for is_column, run in groupby(raw["fields"], lambda field: field["name"] in columns):
        fields = list(run)
        if is_column:
            parts += [columns[field["name"]] for field in fields]
        else:
            part: Any = fastavro.parse_schema({"type": "record", "name": "Part", "fields": fields}, named_schemas={})
            parts.append(part)
    return tuple(parts)


def model(topic: str) -> RecordModel:
    """Return the current model of a topic, always the same object. Raises KeyError for a topic without a schema."""
    return _model(str(topic))  # a cache takes Topic.KERNEL and its equal str for two keys


@cache
def _model(topic: str) -> RecordModel:
    path = AVRO / f"{topic}.avsc"
    if not path.is_file():
        raise KeyError(topic)
    return parse_model(topic, path.read_text())


def has_schema(topic: str) -> bool:
    """Return True if the topic's values are batches (an internal topic may hold something else)."""
    return (AVRO / f"{topic}.avsc").is_file()
