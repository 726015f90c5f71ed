"""Pack numpy arrays into `bytes` fields of an Avro record, one array per field.

Layout (docs/reference/record-format.md): little-endian values of the logical type's `dtype`, one after the other.
encoding "plain": the values. encoding "delta": the first value (minus the batch's `base_time_ns` if `base`), then
differences, wrapping in the dtype's width. A delta column keeps its dtype, so no value can overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.errors import BadColumn, Unencodable

LOGICAL_TYPE = "drumline-column"
DTYPES = ("<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f4", "<f8")
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Column:
    """Declares one packed field.

    `dictionary`: the array<string> field that its values index, or "". `fill`: the value of rows whose writer did not
    have the column.
    """

    name: str
    dtype: np.dtype[Any]
    delta: bool = False
    base: bool = False
    dictionary: str = ""
    fill: int = 0


def filled(column: Column, rows: int) -> Array:
    """Return `rows` times the column's fill value, read-only."""
    array = np.full(rows, column.fill, column.dtype) if column.fill else np.zeros(rows, column.dtype)
    array.flags.writeable = False
    return array


def fit(column: Column, values: Any, topic: str) -> Array:
    """Return `values` as a contiguous 1-D array of the column's dtype.

    Raises Unencodable where that would change a value.
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise Unencodable(f"{array.ndim}-dimensional, columns have 1", topic=topic, field=column.name)
    dtype = column.dtype
    wide = (
        array.dtype.kind in "iu" and array.dtype.itemsize == 8 and dtype.kind == "f"
    )  # numpy treats this cast as safe
    if array.dtype == dtype or (not wide and np.can_cast(array.dtype, dtype, "safe")):
        return np.ascontiguousarray(array, dtype=dtype)
    if array.dtype.kind not in "iuf" or (array.dtype.kind == "f" and dtype.kind != "f"):
        if array.size == 0:
            return np.empty(0, dtype)
        raise Unencodable(f"{array.dtype} values in a {dtype} column", topic=topic, field=column.name)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise Unencodable(
                f"values {array.min()}..{array.max()} outside {limits.min}..{limits.max}",
                topic=topic,
                field=column.name,
            )
        return array.astype(dtype)
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        back = cast.astype(array.dtype)
    if not np.array_equal(back, array, equal_nan=array.dtype.kind == "f"):
        raise Unencodable(f"{array.dtype} values that {dtype} cannot hold exactly", topic=topic, field=column.name)
    return cast


def pack(column: Column, array: Array, base_time_ns: int) -> Array:
    """Return an array whose memory is the packed bytes; `array`: contiguous, 1-D, of the column's dtype (see `fit`).

    Returns `array` itself where nothing is to be done: the caller copies it once, into the record.
    """
    if not column.delta or array.size == 0:
        return array
    out = np.empty_like(array)
    np.subtract(array[1:], array[:-1], out=out[1:])
    out[:1] = array[:1] - np.array([base_time_ns]).astype(column.dtype) if column.base else array[:1]
    return out


def unpack(column: Column, data: bytes, rows: int, base_time_ns: int, topic: str = "") -> Array:
    """Return `rows` values, read-only; plain columns are a view of `data`. Raises BadColumn on another length."""
    expected = rows * column.dtype.itemsize
    if len(data) != expected:
        raise BadColumn(f"{len(data)} bytes where {rows} rows need {expected}", topic=topic, field=column.name)
    array = np.frombuffer(data, dtype=column.dtype)
    if column.delta and rows:
        array = np.cumsum(array, dtype=column.dtype)
        if column.base:
            array += np.array([base_time_ns]).astype(column.dtype)
        array.flags.writeable = False
    return array
