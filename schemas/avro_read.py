"""Read Avro bodies in one pass, in which numbers and lengths are checked.

fastavro wraps a number of more than 64 bits silently, so a body had to be checked before it was read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any

from drumline.schemas.errors import BadEnvelope
from drumline.schemas.model import RecordModel

_DOUBLE = struct.Struct("<d")


def read_fields(writer: RecordModel, body: bytes, start: int, topic: str) -> dict[str, Any]:
    """Return the fields of a body, from byte `start`, that was written with `writer`; columns as bytes.

    Takes at most len(body) steps. Raises BadEnvelope.
    """
    fields: dict[str, Any] = {}
    name, at, length = "", start, len(body)
    try:
        for name, kind, items in writer.structure:  # short numbers and lengths without a call: most are
            if kind == "long" or kind == "int":
                value = body[at]
                if value < 0x80:
                    fields[name], at = value >> 1 ^ -(value & 1), at + 1
                elif (high := body[at + 1]) < 0x80:
                    value = value & 0x7F | high << 7
                    fields[name], at = value >> 1 ^ -(value & 1), at + 2
                else:
                    fields[name], at = _number(body, at)
            elif kind == "bytes" and ((size := body[at]) < 0x80 or body[at + 1] < 0x80):
                begin = at + 1
                if size >= 0x80:
                    size, begin = size & 0x7F | body[begin] << 7, at + 2
                at = begin + (size >> 1)
                if size & 1 or at > length:
                    raise ValueError("a length beyond the end")
                fields[name] = body[begin:at]
            elif items:
                fields[name], at = _read_items(kind, items, body, at)
            else:
                fields[name], at = _READ[kind](body, at)
    except IndexError:
        raise BadEnvelope("truncated", topic=topic, field=name) from None
    except UnicodeDecodeError:
        raise BadEnvelope("a text that is no UTF-8", topic=topic, field=name) from None
    except ValueError as error:
        raise BadEnvelope(str(error), topic=topic, field=name) from None
    if at != length:
        raise BadEnvelope(f"{length - at} bytes after the record", topic=topic)
    return fields


def number_behind(kinds: Iterable[str], body: bytes, at: int) -> int:
    """Return the number that follows values of some kinds, numbers and texts. Raises IndexError, ValueError."""
    for kind in kinds:
        at = (_ends(body, at) if kind == "string" else _number(body, at))[1]
    return _number(body, at)[0]


def _number(body: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at` and the position behind it. Raises IndexError, ValueError."""
    value = body[at]
    if value < 0x80:
        return value >> 1 ^ -(value & 1), at + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        at += 1
        byte = body[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value >> 1 ^ -(value & 1), at + 1
    raise ValueError("a number of more than 64 bits")


def _ends(body: bytes, at: int) -> tuple[int, int]:
    """Return where the bytes begin and end whose length is at `at`."""
    size = body[at]
    if size < 0x80 and not size & 1:  # as nearly always
        begin, end = at + 1, at + 1 + (size >> 1)
    else:
        size, begin = _number(body, at)
        end = begin + size
    if not begin <= end <= len(body):
        raise ValueError("a length beyond the end")
    return begin, end


def _bytes(body: bytes, at: int) -> tuple[bytes, int]:
    begin, end = _ends(body, at)
    return body[begin:end], end


def _text(body: bytes, at: int) -> tuple[str, int]:
    begin, end = _ends(body, at)
    return body[begin:end].decode(), end


def _double(body: bytes, at: int) -> tuple[float, int]:
    if at + _DOUBLE.size > len(body):
        raise ValueError("a length beyond the end")
    return _DOUBLE.unpack_from(body, at)[0], at + _DOUBLE.size


def _boolean(body: bytes, at: int) -> tuple[bool, int]:
    return body[at] != 0, at + 1


#: Avro type -> what returns the value at a place, and the place behind it.
_READ: dict[str, Callable[[bytes, int], tuple[Any, int]]] = {
    **dict.fromkeys(("int", "long"), _number), "bytes": _bytes, "string": _text, "double": _double, "boolean": _boolean,
}  # fmt: skip


def _read_items(kind: str, items: tuple[str, ...], body: bytes, at: int) -> tuple[Any, int]:
    """Return the items of an array or map at `at`, in any number of blocks, and the position behind them."""
    values: list[Any] = []
    while True:
        count, at = _number(body, at) if body[at] else (0, at + 1)
        if not count:
            break
        if count < 0:
            count = -count
            _, at = _number(body, at)
        if count > len(body) - at:  # every item takes a byte at least
            raise ValueError("a count beyond the end")
        if items == ("string",):
            at = _read_texts(body, at, count, values)
        elif items in (("int",), ("long",)):
            at = _read_numbers(body, at, count, values)
        else:
            for item in items * count:
                value, at = _READ[item](body, at)
                values.append(value)
    return dict(zip(values[::2], values[1::2], strict=True)) if kind.startswith("map") else values, at


def _read_numbers(body: bytes, at: int, count: int, values: list[Any]) -> int:
    """Add `count` numbers to `values`: a list has one for each rank. Return the position behind them."""
    for _ in range(count):
        value = body[at]
        if value < 0x80:
            at += 1
        elif (high := body[at + 1]) < 0x80:
            value = value & 0x7F | high << 7
            at += 2
        else:
            number, at = _number(body, at)
            values.append(number)
            continue
        values.append(value >> 1 ^ -(value & 1))
    return at


def _read_texts(body: bytes, at: int, count: int, values: list[Any]) -> int:
    """Add `count` texts to `values`: kernel batches have hundreds. Return the position behind them."""
    end = len(body)
    for _ in range(count):
        size = body[at]
        if size < 0x80:
            at += 1
        elif (high := body[at + 1]) < 0x80:
            size = size & 0x7F | high << 7
            at += 2
        else:
            text, at = _text(body, at)
            values.append(text)
            continue
        behind = at + (size >> 1)
        if size & 1 or behind > end:
            raise ValueError("a length beyond the end")
        values.append(body[at:behind].decode())
        at = behind
    return at
