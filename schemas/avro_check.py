"""Check the numbers and lengths of an Avro body before fastavro reads it.

fastavro's C reader wraps a number of more than 64 bits silently, which would give a wrong value instead of an error.
"""

from __future__ import annotations

from drumline.schemas.model import RecordModel

WIDTHS = {"double": 8, "boolean": 1}


def malformed(writer: RecordModel, body: bytes, start: int) -> str:
    """Return the error in the Avro structure of a body as "field: error", or "". Takes at most len(body) steps."""
    end = len(body)
    at = start

    def number() -> int:
        nonlocal at
        value = body[at]
        at += 1
        if value < 0x80:
            return value >> 1 ^ -(value & 1)
        value &= 0x7F
        for shift in range(7, 70, 7):
            byte = body[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                return value >> 1 ^ -(value & 1)
        raise ValueError("a number of more than 64 bits")

    def skip(kind: str) -> None:
        nonlocal at
        if kind in ("int", "long"):
            number()
            return
        size = WIDTHS.get(kind)
        if size is None:
            size = number()
        if not 0 <= size <= end - at:
            raise ValueError("a length beyond the end")
        at += size

    name = ""
    try:
        for name in writer.fields:
            kind = writer.envelope.get(name, "bytes")
            if not kind.endswith(">"):
                skip(kind)
                continue
            items = [kind[6:-1]] if kind.startswith("array") else ["string", kind[4:-1]]
            while count := number():
                if count < 0:
                    count = -count
                    number()
                if count > end - at:  # every item takes a byte at least
                    raise ValueError("a count beyond the end")
                for _ in range(count):
                    for item in items:
                        skip(item)
    except IndexError:
        return f"{name}: truncated"
    except ValueError as error:
        return f"{name}: {error}"
    return ""
