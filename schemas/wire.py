"""Confluent wire format: byte 0, then the schema id (4 bytes, big endian), then the Avro body."""

from __future__ import annotations

import struct

from drumline.schemas.errors import BadFrame

HEADER = struct.Struct(">bI")


def frame(schema_id: int, body: bytes) -> bytes:
    return HEADER.pack(0, schema_id) + body


def unframe(value: bytes | None) -> tuple[int, bytes]:
    """(schema id, body). Raises BadFrame if there is no header or its magic byte is not 0."""
    if value is None or len(value) < HEADER.size:
        raise BadFrame(f"{0 if value is None else len(value)} bytes, shorter than the 5-byte header")
    magic, schema_id = HEADER.unpack_from(value)
    if magic != 0:
        raise BadFrame(f"magic byte {magic}, expected 0 (Confluent wire format)")
    return schema_id, value[HEADER.size :]
