"""Write one ClickHouse Native block from numpy columns, so that one insert is one block.

A retry must reach the server as the same block, or its deduplication token does not match. A driver that cuts an insert
into blocks by sampled sizes would break that. Format: column count, row count, then per column its name, its type and
its values (https://clickhouse.com/docs/interfaces/formats/Native).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from drumline.schemas.columns import Array
from drumline.schemas.confluent import varint

_U64 = struct.Struct("<Q")
#: LowCardinality: serialisation version 1; flags "own dictionary in this block" and "replace the previous one".
_LOW_CARDINALITY_VERSION = _U64.pack(1)
_LOW_CARDINALITY_FLAGS = (1 << 9) | (1 << 10)


class Texts:
    """Collects distinct texts, in order of appearance."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def indices(self, texts: Iterable[str]) -> list[int]:
        """Add texts, and return the index of each."""
        known = self._known
        return [known.setdefault(text, len(known)) for text in texts]

    @property
    def distinct(self) -> list[str]:
        """Return the texts."""
        return list(self._known)


def text(value: str | bytes) -> bytes:
    """Return a length-prefixed string; str as UTF-8."""
    data = value.encode() if isinstance(value, str) else value
    return varint(len(data)) + data


def strings(values: Sequence[str | bytes]) -> bytes:
    """Return the values of a String column; many may be equal."""
    known = {value: text(value) for value in set(values)}
    return b"".join([known[value] for value in values])


def low_cardinality(texts: Sequence[str], indices: Array) -> bytes:
    """Return the values of a LowCardinality(String) column: `indices` (any integer dtype) into `texts` (distinct)."""
    if len(indices) == 0:
        return b""
    kind, dtype = (0, "<u1") if len(texts) <= 1 << 8 else (1, "<u2") if len(texts) <= 1 << 16 else (2, "<u4")
    return b"".join(
        (
            _LOW_CARDINALITY_VERSION,
            _U64.pack(_LOW_CARDINALITY_FLAGS | kind),
            _U64.pack(len(texts)),
            strings(texts),
            _U64.pack(len(indices)),
            np.ascontiguousarray(indices, dtype=dtype).tobytes(),
        )
    )


def nullable(values: Array, null: Array) -> bytes:
    """Return the values of a Nullable(number) column; `null`: bool per row."""
    return np.ascontiguousarray(null, dtype="u1").tobytes() + np.ascontiguousarray(values).tobytes()


def maps(values: Sequence[Mapping[str, str]]) -> bytes:
    """Return the values of a Map(String, String) column: ends, then all keys, then all values."""
    ends = np.cumsum([len(value) for value in values], dtype="<u8")
    keys = strings([key for value in values for key in value])
    return ends.tobytes() + keys + strings([item for value in values for item in value.values()])


def block(rows: int, columns: Sequence[tuple[str, str, bytes]]) -> bytes:
    """Return a Native block of `rows` rows; `columns`: (name, ClickHouse type, values encoded as above)."""
    parts = [varint(len(columns)), varint(rows)]
    for name, kind, data in columns:
        parts += [text(name), text(kind), data]
    return b"".join(parts)
