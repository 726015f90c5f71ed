"""Find the partition of a key, as Kafka's Java clients do: every producer of drumline's topics has to agree."""

from __future__ import annotations

import struct

_SEED, _M, _MASK = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of the bytes with Kafka's seed; unsigned."""
    size = len(data)
    result = _SEED ^ size
    whole = size & ~3
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        k = block * _M & _MASK
        result = result * _M & _MASK ^ (k ^ k >> 24) * _M & _MASK
    if rest := data[whole:]:
        result = (result ^ int.from_bytes(rest, "little")) * _M & _MASK
    result = (result ^ result >> 13) * _M & _MASK
    return result ^ result >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition, from 0, of a record with this key in a topic with so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
