"""Read and write the bytes around columns.

Confluent wire format: byte 0, then the schema id (4 bytes, big endian), then the Avro body.
"""

from __future__ import annotations

import struct

from drumline.schemas.errors import BadFrame

HEADER = struct.Struct(">BI")
#: Far above what a producer may send (1 MB); a bound on what a compressed bad record can unfold to.
MAX_BYTES = 16 << 20
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))


def header(schema_id: int) -> bytes:
    """Return the five bytes before an Avro body."""
    return HEADER.pack(0, schema_id)


def schema_id(value: bytes | None, topic: str = "") -> int:
    """Return the schema id of a Kafka value; the body starts at HEADER.size. Raises BadFrame."""
    if value is None or len(value) < HEADER.size:
        raise BadFrame(f"{0 if value is None else len(value)} bytes, shorter than the 5-byte header", topic=topic)
    if len(value) > MAX_BYTES:
        raise BadFrame(f"{len(value)} bytes, longer than {MAX_BYTES}", topic=topic)
    magic, number = HEADER.unpack_from(value)
    if magic != 0:
        raise BadFrame(f"magic byte {magic}, expected 0 (Confluent wire format)", topic=topic)
    return int(number)


def framed_schema_id(value: bytes | None) -> int | None:
    """Return the schema id of a Kafka value, or None if the value has no frame."""
    if value is None or len(value) < HEADER.size or value[0] != 0:
        return None
    return int(HEADER.unpack_from(value)[1])


def varint(value: int) -> bytes:
    """Return `value` >= 0 as LEB128: 7 bits a byte, low bits first."""
    if value < len(_ONE_BYTE):
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def avro_length(size: int) -> bytes:
    """Return a length as an Avro long (zigzag, then LEB128). `size` >= 0."""
    return varint(size << 1)
