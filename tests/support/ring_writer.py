"""Write rings as NCCL's profiler plugin does, without NCCL."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drumline.producers.rings.ring_file import (
    COMM,
    ENVIRONMENT,
    FUNCTIONS,
    HEADER_BYTES,
    LAYOUT,
    MAGIC,
    MARK_NAME_BYTES,
    MAX_COMMS,
    RECORD,
    HeaderField,
    Kind,
)
from drumline.schemas.columns import Array

FLOAT32 = 8
MS = 1_000_000
#: Operations of a step, and time between two writes; s.


class RingWriter:
    """Writes one ring through a mapping, as a live process does; `offset_ns`: of the GPU's clock to the host's."""

    def __init__(
        self,
        folder: Path,
        capacity: int = 1_024,
        created_ns: int = 10**18,
        environment: Mapping[str, str] | None = None,
        *,
        pid: int = 4_711,
        offset_ns: int = -12 * MS,
    ) -> None:
        folder.mkdir(exist_ok=True, parents=True)
        self.path = folder / f"{pid}-{created_ns:x}.ring"
        self.capacity, self.offset_ns = capacity, offset_ns
        size = HEADER_BYTES + MAX_COMMS * COMM.itemsize + capacity * RECORD.itemsize
        self.path.write_bytes(bytes(size))
        self.map = np.memmap(self.path, np.uint8, "r+")
        self.header = self.map[: len(HeaderField) * 8].view("<u8")
        self.comms = self.map[HEADER_BYTES : HEADER_BYTES + MAX_COMMS * COMM.itemsize].view(COMM)
        self.records = self.map[HEADER_BYTES + MAX_COMMS * COMM.itemsize :].view(RECORD)
        texts = b"".join(f"{name}={value}\0".encode() for name, value in (environment or {}).items())
        self.map[ENVIRONMENT : ENVIRONMENT + len(texts)] = np.frombuffer(texts, np.uint8)
        for field, value in (
            (HeaderField.VERSION, LAYOUT), (HeaderField.PID, pid), (HeaderField.CREATED_NS, created_ns),
            (HeaderField.CAPACITY, capacity), (HeaderField.INTERFACE, 5), (HeaderField.MAGIC, MAGIC),
        ):  # fmt: skip
            self.header[field] = value
        self.lock = os.open(self.path, os.O_RDWR)
        fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.step = -1

    def communicator(self, hash_: int = 0xC0FFEE, rank: int = 0, ranks: int = 2) -> int:
        """Open a communicator and return its index."""
        index = int(self.header[HeaderField.COMMS])
        self.comms[index] = (hash_, 1, 0, 1, rank, ranks, 1, b"")
        self.header[HeaderField.COMMS] += 1
        return index

    def claim(self, count: int = 1) -> Array:
        """Return the positions of the next `count` records, fewer where the ring is full: the rest is dropped."""
        first = int(self.header[HeaderField.WRITTEN])
        free = int(self.header[HeaderField.READ]) + self.capacity - first
        self.header[HeaderField.DROPPED] += max(0, count - free)
        self.header[HeaderField.WRITTEN] += min(count, free)
        return np.arange(first, first + min(count, free))

    def operations(
        self,
        call_ns: Array | int,
        start_ns: Array | int,
        stop_ns: Array | int,
        comm: int = 0,
        function: str = "AllReduce",
        channels: int = 2,
        **fields: Any,
    ) -> Array:
        """Write operations that have ended; times of the host, arrays or numbers. Return their positions."""
        called, start, stop = np.broadcast_arrays(np.atleast_1d(call_ns), start_ns, stop_ns)
        at = self.claim(len(called))
        new = np.zeros(len(at), RECORD)
        new["kind"], new["function"], new["datatype"] = Kind.OPERATION, FUNCTIONS.index(function) + 1, FLOAT32
        new["comm"], new["generation"], new["step"], new["count"] = comm, 1, self.step, 1_000
        new["channels"], new["peer"] = channels, -1
        new["host_ns"] = called[: len(at)]
        new["gpu_start_ns"] = start[: len(at)] - self.offset_ns
        new["gpu_stop_ns"] = stop[: len(at)] - self.offset_ns
        new["seen_ns"] = stop[: len(at)]
        stopped = fields.pop("stopped", channels)
        for name, value in fields.items():
            new[name] = value
        new["progress"] = ((at + 1) & 0xFFFFFFFF) << 32 | stopped << 16 | stopped
        self._publish(at, new)
        return at

    def mark(self, number: int, host_ns: int, count: int = 0, kind: Kind = Kind.STEP_MARK, name: bytes = b"") -> None:
        """Write a mark."""
        if kind is Kind.STEP_MARK:
            self.step = number
        for at in self.claim():
            new = np.zeros(1, RECORD)
            new["kind"], new["step"], new["sequence"], new["count"] = kind, self.step, np.uint64(number % 2**64), count
            new["comm"], new["host_ns"], new["progress"] = 0xFFFF, host_ns, (at + 1) << 32
            new.view(np.uint8)[-MARK_NAME_BYTES:][: len(name)] = np.frombuffer(name, np.uint8)
            self._publish(np.array([at]), new)

    def _publish(self, at: Array, new: Array) -> None:
        """Write records; their numbers last, as the plugin does: a reader never meets half of one."""
        self.records[at % self.capacity] = new
        self.records["number"][at % self.capacity] = at + 1

    def end(self) -> None:
        """Let the process end, in any way."""
        os.close(self.lock)
