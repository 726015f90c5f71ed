"""Values of the state that the changelog has: compressed in memory, as most of them are not read for many windows.

Most values are small, so those that come and go together are compressed as one block. Bytes of rows that mean the same
are put side by side first: most of them are alike, and the result is half as large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import cramjam
import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import rows_begin

#: Bytes of a block: a larger one is hardly smaller compressed, and whoever reads one value unpacks all.
BLOCK_BYTES = 64 << 10
#: Bytes of values from which on they are compressed: of less, it costs more than it saves.
LEAST_BYTES = 8 << 10
#: Unpacked blocks that are kept: a window is read by communicator, each of which has values in some blocks.
UNPACKED = 32


class Block:
    """Holds compressed values: the heads of all, then their rows by byte. `ends`: [2, value + 1] of heads and rows."""

    __slots__ = ("ends", "packed", "row_bytes")

    def __init__(self, packed: bytes, ends: NDArray[np.uint32], row_bytes: int) -> None:
        self.packed, self.ends, self.row_bytes = packed, ends, row_bytes


class CompressedValue:
    """Stands for a value of the state, the one of a number in a block. It stays in memory: no changelog has it."""

    __slots__ = ("block", "number")

    def __init__(self, block: Block, number: int) -> None:
        self.block, self.number = block, number

    @property
    def length(self) -> int:
        """Return the bytes of the value."""
        ends = self.block.ends
        return int((ends[:, self.number + 1] - ends[:, self.number]).sum())


#: A value as the state holds it in memory.
Value = bytes | CompressedValue


def compress(values: Sequence[bytes], row_bytes: int) -> list[CompressedValue]:
    """Return packed values (core/records.py) as those of one block. `row_bytes`: of a row; rows end each value."""
    begins = [rows_begin(value) for value in values]
    begins = [at + (len(value) - at) % row_bytes for at, value in zip(begins, values, strict=True)]
    rows = b"".join(value[at:] for at, value in zip(begins, values, strict=True))
    heads = b"".join(value[:at] for at, value in zip(begins, values, strict=True))
    by_byte: NDArray[Any] = np.frombuffer(rows, np.uint8).reshape(-1, row_bytes).T
    ends = np.zeros((2, len(values) + 1), np.uint32)
    ends[0, 1:] = np.cumsum(begins)
    ends[1, 1:] = np.cumsum([len(value) for value in values]) - ends[0, 1:]
    block = Block(bytes(cramjam.lz4.compress_block(heads + by_byte.tobytes())), ends, row_bytes)
    return [CompressedValue(block, number) for number in range(len(values))]


def by_block(values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values with those of one block side by side, so that whoever reads all unpacks each block once."""
    return dict(sorted(values.items(), key=lambda item: 0 if isinstance(item[1], bytes) else id(item[1].block)))


def plain(value: Value) -> bytes:
    """Return a value as it was written."""
    if isinstance(value, bytes):
        return value
    (heads, rows), ends, number = _unpacked(value.block), value.block.ends, value.number
    return heads[ends[0, number] : ends[0, number + 1]] + rows[ends[1, number] : ends[1, number + 1]]


@lru_cache(UNPACKED)
def _unpacked(block: Block) -> tuple[bytes, bytes]:
    """Return the heads and the rows of a block."""
    data, at = bytes(cramjam.lz4.decompress_block(block.packed)), int(block.ends[0, -1])
    by_byte: NDArray[Any] = np.frombuffer(data, np.uint8, offset=at).reshape(block.row_bytes, -1)
    return data[:at], by_byte.T.tobytes()
