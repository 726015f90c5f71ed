"""Fields that every record starts with, and the check of their values, which neither Avro writer nor reader does."""

from __future__ import annotations

import copy
from operator import index
from typing import TYPE_CHECKING, Any

from drumline.schemas.errors import Unencodable

if TYPE_CHECKING:
    from drumline.schemas.model import RecordModel

#: The source of a batch: part of every envelope, except OF_ONE_RANK where the batch is about a whole job.
IDENTITY = ("job", "run", "rank", "local_rank", "world_size", "host", "gpu_uuid", "process_id")
#: Avro types of the fields that every record starts with, in this order; see any .avsc for their meaning.
ENVELOPE: dict[str, str] = {
    **dict.fromkeys(IDENTITY, "string"),
    "rank": "int",
    "local_rank": "int",
    "world_size": "int",
    "sequence": "long",
    "dropped_before": "long",
    "rows": "int",
    "base_time_ns": "long",
    "watermark_ns": "long",
    "sent_ns": "long",
}
#: Envelope fields about one rank. Records about a whole job have columns of these names instead, where rows need them.
OF_ONE_RANK = ("rank", "local_rank", "host", "gpu_uuid")
JOB_ENVELOPE = {name: kind for name, kind in ENVELOPE.items() if name not in OF_ONE_RANK}
LIMITS = {"int": (-(1 << 31), (1 << 31) - 1), "long": (-(1 << 63), (1 << 63) - 1)}


def _scalar(kind: str, value: Any) -> Any:
    """Return `value` as Avro's `kind`. Raises TypeError, ValueError or UnicodeEncodeError."""
    if kind == "string":
        if not isinstance(value, str):
            raise TypeError("not a string")
        value.encode()  # lone surrogates have no UTF-8
        return str(value)
    if kind == "boolean":
        if not isinstance(value, bool):
            raise TypeError("not a boolean")
        return value
    if kind == "double":
        return float(value)
    number = index(value)
    low, high = LIMITS[kind]
    if not low <= number <= high:
        raise ValueError(f"outside Avro's {kind}")
    return number


def _value(kind: str, value: Any) -> Any:
    if kind.startswith("array<"):
        if isinstance(value, str | bytes | dict):
            raise TypeError("not a list")
        inner = kind[6:-1]
        if inner == "string":
            texts = list(value)
            "".join(texts).encode()  # one check of all texts: kernel batches carry hundreds
            return texts
        return [_scalar(inner, item) for item in value]
    if kind.startswith("map<"):
        return {_scalar("string", key): _scalar(kind[4:-1], item) for key, item in value.items()}
    return _scalar(kind, value)


def checked(model: RecordModel, envelope: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of an envelope with all fields of the schema, defaults filled in.

    Raises Unencodable naming the field.
    """
    record: dict[str, Any] = {}
    known = 0
    for name, kind in model.envelope.items():
        if name in envelope:
            known += 1
            try:
                record[name] = _value(kind, envelope[name])
            except (TypeError, ValueError, AttributeError) as error:
                raise Unencodable(
                    f"not a valid {kind} ({type(error).__name__})", topic=model.topic, field=name
                ) from None
        elif name in model.defaults:
            record[name] = copy.copy(model.defaults[name])
        else:
            raise Unencodable("missing, and the schema has no default", topic=model.topic, field=name)
    if known != len(envelope):
        stray = sorted(str(name) for name in envelope.keys() - model.envelope.keys())
        raise Unencodable("no such envelope field in the schema", topic=model.topic, field=", ".join(stray))
    return record


def within_int32(model: RecordModel, record: dict[str, Any]) -> str | None:
    """Return the first `int` field of a decoded record that holds more than 32 bits, or None."""
    low, high = LIMITS["int"]
    for name, is_array in model.narrow:
        value = record[name]
        if not all(low <= item <= high for item in value) if is_array else not low <= value <= high:
            return name
    return None
