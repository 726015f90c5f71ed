"""Values of the state that the changelog has: compressed in memory, as most of them are not read for many windows.

Bytes of rows that mean the same are put side by side first: most of them are alike, and the result is half as large.
"""

from __future__ import annotations

import struct

import cramjam
import numpy as np

#: Bytes of a row, then the length of the value, which begins what the library writes.
_PREFIX = struct.Struct("<HI")
_ROW = struct.Struct("<H")
#: Bytes of a value from which on it is compressed: of less, it costs more than it saves.
LEAST_BYTES = 8 << 10


class CompressedValue(bytes):
    """Holds a value of the state in fewer bytes. It stays in memory: no changelog has it."""

    __slots__ = ()

    @property
    def length(self) -> int:
        """Return the bytes of the value."""
        length: int = _PREFIX.unpack_from(self)[1]
        return length


def compress(value: bytes, row_bytes: int) -> CompressedValue:
    """Return a value compressed. `row_bytes`: of a row; rows end the value."""
    at = len(value) % row_bytes
    columns = np.frombuffer(value, np.uint8, offset=at).reshape(-1, row_bytes).T
    packed = cramjam.lz4.compress_block(value[:at] + columns.tobytes())
    return CompressedValue(_ROW.pack(row_bytes) + bytes(packed))


def plain(value: bytes) -> bytes:
    """Return a value as it was written."""
    if type(value) is not CompressedValue:
        return value
    row_bytes, length = _PREFIX.unpack_from(value)
    data, at = bytes(cramjam.lz4.decompress_block(value[_ROW.size :])), length % row_bytes
    rows = np.frombuffer(data, np.uint8, offset=at).reshape(row_bytes, -1).T
    return data[:at] + rows.tobytes()
