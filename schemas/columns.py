"""The packed column: one `bytes` field of an Avro record that holds one numpy array.

Layout (docs/formats.md): little-endian values of the logical type's `dtype`, one after the other.
encoding "plain": the values. encoding "delta": the first value (minus the batch's `base_time_ns` if `base`), then
differences, wrapping in the dtype's width. A delta column keeps its dtype, so no value can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.errors import BadColumn

LOGICAL_TYPE = "drumline-column"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """One packed field. `dictionary` names the array<string> field that its values index, or is ""."""

    name: str
    dtype: np.dtype[Any]
    delta: bool = False
    base: bool = False
    dictionary: str = ""


def pack(column: Column, values: Array, base_time_ns: int) -> bytes:
    """`values`: 1-D, any dtype that casts to the column's without loss of kind. Returns itemsize * len bytes."""
    array = np.ascontiguousarray(values, dtype=column.dtype)
    if not column.delta or array.size == 0:
        return array.tobytes()
    out = np.empty_like(array)
    out[1:] = array[1:] - array[:-1]
    out[0] = array[0] - column.dtype.type(base_time_ns) if column.base else array[0]
    return out.tobytes()


def unpack(column: Column, data: bytes, rows: int, base_time_ns: int, topic: str = "") -> Array:
    """Returns `rows` values; plain columns are a read-only view of `data`. Raises BadColumn on another length."""
    expected = rows * column.dtype.itemsize
    if len(data) != expected:
        raise BadColumn(f"{len(data)} bytes where {rows} rows need {expected}", topic=topic, field=column.name)
    array = np.frombuffer(data, dtype=column.dtype)
    if not column.delta or rows == 0:
        return array
    with np.errstate(over="ignore"):
        if column.base:
            array = array.copy()
            array[0] += column.dtype.type(base_time_ns)
        return np.cumsum(array, dtype=column.dtype)
