"""Check the numbers and lengths of an Avro body before fastavro reads it.

fastavro's C reader wraps a number of more than 64 bits silently, which would give a wrong value instead of an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from drumline.schemas.model import RecordModel

_NUMBERS = (("int",), ("long",))
WIDTHS = {"double": 8, "boolean": 1}


def malformed(writer: RecordModel, body: bytes, start: int) -> str:
    """Return the error in the Avro structure of a body as "field: error", or "". Takes at most len(body) steps."""
    name, at = "", start
    try:
        for field, kind, items in writer.structure:
            name = field
            if not items:
                at = _skip(kind, body, at)
                continue
            while True:
                count, at = _number(body, at)
                if not count:
                    break
                if count < 0:
                    count = -count
                    _, at = _number(body, at)
                if count > len(body) - at:  # every item takes a byte at least
                    raise ValueError("a count beyond the end")
                if items == ("string",):
                    at = _skip_texts(body, at, count)
                    continue
                if items in _NUMBERS:
                    at = _skip_numbers(body, at, count)
                    continue
                for _ in range(count):
                    for item in items:
                        at = _skip(item, body, at)
    except IndexError:
        return f"{name}: truncated"
    except ValueError as error:
        return f"{name}: {error}"
    return ""


def number_behind(kinds: Iterable[str], body: bytes, at: int) -> int:
    """Return the number that follows values of some kinds. Raises IndexError, ValueError."""
    for kind in kinds:
        at = _skip(kind, body, at)
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


def _skip(kind: str, body: bytes, at: int) -> int:
    """Return the position behind a value of `kind`. Raises IndexError, ValueError."""
    size = WIDTHS.get(kind)
    if size is None:
        value = body[at]
        if value < 0x80:
            size, at = value >> 1 ^ -(value & 1), at + 1
        else:
            size, at = _number(body, at)
        if kind in ("int", "long"):
            return at
    if not 0 <= size <= len(body) - at:
        raise ValueError("a length beyond the end")
    return at + size


def _skip_numbers(body: bytes, at: int, count: int) -> int:
    """Return the position behind `count` numbers: a list has one for each rank. Raises IndexError, ValueError."""
    for _ in range(count):
        begin = at
        while body[at] >= 0x80:
            at += 1
        at += 1
        if at - begin > 9:  # fewer bytes have at most 63 bits
            _number(body, begin)
    return at


def _skip_texts(body: bytes, at: int, count: int) -> int:
    """Return the position behind `count` strings: kernel batches carry hundreds. Raises IndexError, ValueError."""
    end = len(body)
    for _ in range(count):
        size = body[at]
        if size < 0x80:
            at += 1
        elif (high := body[at + 1]) < 0x80:
            size = size & 0x7F | high << 7
            at += 2
        else:
            at = _skip("string", body, at)
            continue
        if size & 1:
            raise ValueError("a length beyond the end")
        at += size >> 1
        if at > end:
            raise ValueError("a length beyond the end")
    return at
