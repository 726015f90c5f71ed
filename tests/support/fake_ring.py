"""A ring as NCCL's profiler plugin writes it, written by a test: no NCCL, no C."""

import fcntl
import os
from pathlib import Path

import numpy as np

from drumline.producers.rings.ring_file import (
    COMM,
    ENVIRONMENT,
    FUNCTIONS,
    HEADER_BYTES,
    LAYOUT,
    MAGIC,
    MAX_COMMS,
    RECORD,
    HeaderField,
    Kind,
)

FLOAT32 = 8
MS = 1_000_000


class FakeRing:
    """Writes one ring through a mapping, as a live process does; `offset_ns`: of the GPU's clock to the host's."""

    def __init__(
        self, folder: Path, capacity=1_024, created_ns=10**18, environment=None, *, pid=4_711, offset_ns=-12 * MS
    ):
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

    def communicator(self, hash_=0xC0FFEE, rank=0, ranks=2):
        """Open a communicator and return its index."""
        index = int(self.header[HeaderField.COMMS])
        self.comms[index] = (hash_, 1, 0, 1, rank, ranks, 1, b"")
        self.header[HeaderField.COMMS] += 1
        return index

    def claim(self, count=1):
        """Return the positions of the next `count` records, fewer where the ring is full: the rest is dropped."""
        first = int(self.header[HeaderField.WRITTEN])
        free = int(self.header[HeaderField.READ]) + self.capacity - first
        self.header[HeaderField.DROPPED] += max(0, count - free)
        self.header[HeaderField.WRITTEN] += min(count, free)
        return np.arange(first, first + min(count, free))

    def operations(self, call_ns, start_ns, stop_ns, comm=0, function="AllReduce", count=1_000, channels=2, **fields):
        """Write operations that have ended; times of the host, arrays or numbers. Return their positions."""
        call_ns, start_ns, stop_ns = np.broadcast_arrays(np.atleast_1d(call_ns), start_ns, stop_ns)
        at = self.claim(len(call_ns))
        new = np.zeros(len(at), RECORD)
        new["kind"], new["function"], new["datatype"] = Kind.OPERATION, FUNCTIONS.index(function) + 1, FLOAT32
        new["comm"], new["generation"], new["step"], new["count"] = comm, 1, self.step, count
        new["channels"], new["peer"] = channels, -1
        new["host_ns"] = call_ns[: len(at)]
        new["gpu_start_ns"] = start_ns[: len(at)] - self.offset_ns
        new["gpu_stop_ns"] = stop_ns[: len(at)] - self.offset_ns
        new["seen_ns"] = stop_ns[: len(at)]
        stopped = fields.pop("stopped", channels)
        for name, value in fields.items():
            new[name] = value
        new["number"] = at + 1
        new["progress"] = ((at + 1) & 0xFFFFFFFF) << 32 | stopped << 16 | stopped
        self.records[at % self.capacity] = new
        return at

    def running(self, call_ns, comm=0, **fields):
        """Write an operation that has been called only. Return its position."""
        (at,) = self.operations(call_ns, 0, 0, comm, **fields)
        self.records["progress"][at % self.capacity] &= ~np.uint64(0xFFFFFFFF)
        self.records["seen_ns"][at % self.capacity] = 0
        return at

    def mark(self, number, host_ns, source=0, kind=Kind.STEP_MARK):
        """Write a mark."""
        if kind is Kind.STEP_MARK:
            self.step = number
        for at in self.claim():
            new = np.zeros(1, RECORD)
            new["kind"], new["step"], new["sequence"], new["count"] = kind, self.step, np.uint64(number % 2**64), source
            new["comm"], new["host_ns"], new["number"], new["progress"] = 0xFFFF, host_ns, at + 1, (at + 1) << 32
            self.records[at % self.capacity] = new

    def train(self, steps, begin_ns, step_ns=10 * MS, operations=4, first=0):
        """Write steps of equal operations, one after the other, and the mark of the next step."""
        for number in range(first, first + steps):
            start = begin_ns + (number - first) * step_ns
            if number != self.step:
                self.mark(number, start)
            call = start + np.arange(1, operations + 1) * (step_ns // (operations + 1))
            self.operations(call, call + step_ns // 20, call + step_ns // 10)
        self.mark(first + steps, begin_ns + steps * step_ns)

    def end(self):
        """Let the process end, in any way."""
        os.close(self.lock)
