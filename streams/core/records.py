"""State values of the straggler stages: a small head and a numpy record array, packed into bytes.

Layout: u1 version, i8 last source offset applied, u4 length of the head, the head as JSON, the rows as they are.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.void]
_PREFIX = struct.Struct("<BqI")
#: To be raised with every change of what is packed: fields of rows, names in heads (tests/test_state_version.py).
_VERSION = 3


@dataclass(frozen=True, slots=True)
class Packed:
    """`offset`: rows from source offsets up to this one are in; a replay at or below it must change nothing."""

    offset: int
    head: dict[str, Any]
    rows: Rows


def pack_rows(offset: int, head: dict[str, Any], rows: Rows) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    return _PREFIX.pack(_VERSION, offset, len(text)) + text + rows.tobytes()


def unpack_rows(data: bytes, dtype: np.dtype[Any]) -> Packed:
    """Rows are a read-only view. Raises ValueError on a value this version did not write."""
    version, offset, length = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise ValueError(f"state value of version {version}, this program reads {_VERSION}")
    body = _PREFIX.size + length
    return Packed(offset, json.loads(data[_PREFIX.size : body]), np.frombuffer(data, dtype, offset=body))


def stacked(parts: Sequence[Rows]) -> Rows:
    """np.concatenate for records of the same dtype, at least one: without looking into fields, 10 times as fast."""
    out = np.empty(sum(map(len, parts)), parts[0].dtype)
    at = 0
    for part in parts:
        out[at : at + len(part)] = part
        at += len(part)
    return out


def key(*parts: object) -> str:
    """A state key: its parts joined by "|"; the run is last, since only it may hold any character."""
    return "|".join(str(part) for part in parts)
