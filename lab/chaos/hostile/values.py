"""Write Avro records field by field, also such as no encoder would write, and list hostile values of each type.

A `Draft` maps every field of a topic to its value: an array for a column, or bytes that are written as they are.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from drumline.schemas.columns import pack
from drumline.schemas.confluent import avro_length, varint
from drumline.schemas.model import RecordModel

Draft = dict[str, Any]

INTS = (-1, 0, 2, 4_097, 1_000_000, (1 << 31) - 2, (1 << 31) - 1, -(1 << 31))
#: The last three have more bits than Avro allows.
LONGS = (*INTS, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 64, 1 << 70)
DOUBLES = (float("nan"), float("inf"), float("-inf"), -1.0, 1e308, 5e-324)
#: Times of an epoch that is none, of 1970, 2100, 2106 and 2262; ns.
DATES = (-1, 1, 4_102_444_800 * 10**9, ((1 << 32) - 1) * 10**9, (1 << 63) - 2)
HUGE = 1_000_000
TEXTS: tuple[str | bytes, ...] = (
    "",
    "\0",
    "..",
    "../../../etc/passwd",
    "\x1b]0;x\x07\x1b[2J\x9b31m\r\n\t",
    "\u202e\ufffe\uffff",
    "\\' OR 1=1 -- ",
    "<script>${job:raw}{{7*7}}",
    b"\xff\xfe\x80",
    b"\xed\xa0\x80",
    "x" * 300,
    "\u540d" * 5_000,
    "x" * HUGE,
)
MANY = 50_000
#: Texts of fields that have a fixed set of them.
KNOWN: dict[str, Any] = {
    "operations": ["AllReduce", "AllGather"],
    "kind_operations": [0, 1],
    "causes": ["ok", "host_stall"],
    "states": ["ok", "warning"],
    "confidences": ["none", "high"],
    "evidence": ["{}", "{}"],
    "steps_from": "api",
    "point_to_point": "",
    "source": "replay",
}


def avro(kind: str, value: Any) -> bytes:
    """Return the Avro form of an envelope value, whatever its range: integers of any size, bytes for texts."""
    if kind in ("int", "long"):
        return varint(value << 1 if value >= 0 else (-value << 1) - 1)
    if kind == "double":
        return struct.pack("<d", value)
    if kind == "boolean":
        return bytes([value])
    if kind == "string":
        text = value if isinstance(value, bytes) else value.encode()
        return avro_length(len(text)) + text
    if kind.startswith("array<"):
        items = b"".join(avro(kind[6:-1], item) for item in value)
    else:
        items = b"".join(avro("string", key) + avro(kind[4:-1], item) for key, item in value.items())
    return (avro_length(len(value)) + items if value else b"") + b"\0"


def body(model: RecordModel, draft: Draft) -> bytes:
    """Return the Avro body of a draft."""
    columns = {column.name: column for column in model.columns}
    base_ns = max(-(1 << 63), min(int(draft["base_time_ns"]), (1 << 63) - 1))
    parts: list[bytes] = []
    for name in model.fields:
        value = draft[name]
        if name in columns:
            packed = value if isinstance(value, bytes) else pack(columns[name], value, base_ns).tobytes()
            parts += (avro_length(len(packed)), packed)
        else:
            parts.append(avro(model.envelope[name], value))
    return b"".join(parts)


def plausible(model: RecordModel, source: dict[str, Any], rows: int, first_step: int) -> Draft:
    """Return a draft that every program accepts. `source`: values of envelope fields."""
    now_ns = time.time_ns() - 10**9
    draft: Draft = {}
    for name, kind in model.envelope.items():
        blank: Any = {"string": "x", "double": 0.0, "boolean": False, "array<string>": ["a", "b"], "array<int>": [0, 1]}
        draft[name] = blank.get(kind, [1, 2] if kind.startswith("array") else {"k": "v"} if "map" in kind else 1)
        if name.endswith("_ns") and kind == "long" and name not in ("step_ns", "duration_ns"):
            draft[name] = now_ns
    draft |= {"rows": rows, "dropped_before": 0, "complete_step": first_step + rows - 1, "first_step": first_step}
    draft |= {
        **KNOWN,
        "ranks": 2,
        "ranks_seen": 2,
        "last_step": first_step + rows - 1,
        "window_end_ns": now_ns + 10**9,
        "late_rows": 0,
    } | source
    draft = {name: value for name, value in draft.items() if name in model.envelope}
    index = np.arange(rows)
    for column in model.columns:
        values = np.full(rows, 1_000)
        if column.dictionary:
            values = index % 2
        elif column.base:
            values = now_ns + index * 1_000_000
        elif "step" in column.name:
            values = first_step + index
        elif column.dtype.itemsize < 4 or column.name in ("rank", "ordinal", "collectives", "worst_ordinal"):
            values = index % 2
        draft[column.name] = values.astype(column.dtype)
    return draft


def envelope_values(name: str, kind: str) -> Iterator[Any]:
    """Yield hostile values of an envelope field."""
    if kind in ("int", "long"):
        yield from INTS if kind == "int" else LONGS
        yield from (1 << 31, 1 << 64) if kind == "int" else ()
        if name.endswith("_ns"):
            yield from DATES
    elif kind == "double":
        yield from DOUBLES
    elif kind == "boolean":
        yield 7
    elif kind == "string":
        yield from TEXTS
    elif kind.startswith("array<"):
        items = list(envelope_values(name, kind[6:-1]))
        yield from ([], items[:1], [items[-1]], items[:12], items[:1] * MANY)
    else:
        yield from ({}, {"": ""}, {"k": "x" * HUGE}, {b"\xff": b"\xff"}, {f"k{i}": "" for i in range(MANY)})


def column_values(dtype: np.dtype[Any], rows: int, rng: random.Random) -> Iterator[Any]:
    """Yield hostile values of a column: arrays of its type, or bytes of a wrong length."""
    if dtype.kind == "f":
        extremes: list[Any] = list(DOUBLES)
    else:
        limits = np.iinfo(dtype)
        extremes = [limits.min, limits.max, limits.max - 1, limits.max // 2, 0, min(90_000, limits.max)]
        extremes += [-1, -10] if dtype.kind == "i" else []
    with np.errstate(over="ignore"):
        for extreme in extremes:
            array = np.zeros(rows, dtype)
            array[:] = extreme
            yield array
            mixed = np.arange(rows).astype(dtype)
            mixed[rng.randrange(rows)] = extreme
            yield mixed
    size = rows * dtype.itemsize
    yield rng.randbytes(size)
    for wrong in (0, size - dtype.itemsize, size + dtype.itemsize, size - 1, size + 1, size * 1_000):
        yield bytes(max(0, wrong))
