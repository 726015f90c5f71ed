"""The file that one process's NCCL operations are written to, as the agent reads it; ring.h has the same numbers.

Any user may lay any file into the folder, and the process may damage its own at any time. So it is read with pread
(a mapping of a file that is cut short would kill the agent), a bounded part at a time, and nothing in it is believed
without a check. The agent writes two words of it: READ and TIMES_REQUESTED.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from drumline.producers.spool.files import open_file
from drumline.producers.spool.folder_layout import BadSpool
from drumline.schemas.columns import Array

LAYOUT, MAGIC = 1, 0x676E69725F6C6D64
HEADER_BYTES, COMM_BYTES, RECORD_BYTES, MAX_COMMS, MARK_NAME_BYTES = 4_096, 96, 96, 1_024, 32
LEAST_RECORDS, MOST_RECORDS = 64, 1 << 20
#: Offset of the NAME=VALUE texts in the header.
ENVIRONMENT = 512
SUFFIX = ".ring"
#: Time in which a process creates its file; s.
CREATION_S = 60.0
#: Most records read in one go: 3 MiB.
MOST_READ = 1 << 15
#: Flags in `function` of a mark: recording is off; operations from here to the next step have no times of the GPU.
MARK_PAUSED, MARK_UNTIMED = 1, 2
#: `protocol` of a collective by copy engines, of which NCCL has no times.
COPY_ENGINES = 4


class HeaderField(IntEnum):
    """Numbers of the header, 64 bits each, by place; see ring.h."""

    MAGIC = 0
    VERSION = 1
    PID = 2
    CREATED_NS = 3
    CAPACITY = 4
    WRITTEN = 5
    READ = 6
    DROPPED = 7
    UNKNOWN = 8
    COMMS = 9
    COMMS_DENIED = 10
    INTERFACE = 11
    STEP = 12
    ENDED = 13
    CHAIN = 14
    CAPTURED = 15
    DENIED = 16
    ENVIRONMENT_LEFT_OUT = 17
    PAUSED = 18
    UNTIMED_STEPS = 19
    TIMES_REQUESTED = 20
    STARTED_NS = 21
    TRANSFERS_DROPPED = 22
    GPU_TICKS = 23


class Kind(IntEnum):
    """Kinds of records."""

    OPERATION = 1
    STEP_MARK = 2
    RANGE_BEGIN = 3
    RANGE_END = 4
    GRAPH_REPLAY = 5
    RECORD = 6
    TRANSFERS = 7


COMM = np.dtype(
    [
        ("id", "<u8"), ("created_ns", "<u8"), ("closed_ns", "<u8"), ("generation", "<u4"),
        ("rank", "<i4"), ("ranks", "<i4"), ("nodes", "<i4"), ("name", "S56"),
    ]
)  # fmt: skip
#: A mark has its number in `sequence`, its name in the 32 bytes from `gpu_start_ns` on, and in `function` whether
#: operations were not recorded then.
RECORD = np.dtype(
    [
        ("number", "<u8"), ("progress", "<u8"), ("kind", "u1"), ("function", "u1"), ("datatype", "u1"),
        ("algorithm", "u1"), ("protocol", "u1"), ("channels", "u1"), ("comm", "<u2"), ("peer", "<i4"),
        ("generation", "<u4"), ("step", "<i8"), ("sequence", "<u8"), ("count", "<u8"), ("host_ns", "<u8"),
        ("gpu_start_ns", "<u8"), ("gpu_stop_ns", "<u8"), ("seen_ns", "<u8"), ("captured", "<u4"), ("plan", "<u4"),
    ]
)  # fmt: skip
#: A record of kind TRANSFERS, as ring.h explains it: times in TRANSFER_UNIT_NS.
TRANSFERS = np.dtype(
    [
        ("number", "<u8"), ("progress", "<u8"), ("kind", "u1"), ("direction", "u1"), ("unused", "V3"),
        ("channel", "u1"), ("comm", "<u2"), ("peer", "<i4"), ("generation", "<u4"), ("step", "<i8"),
        ("transfers", "<u8"), ("bytes", "<u8"), ("host_ns", "<u8"), ("gpu_wait", "<u4"), ("peer_wait", "<u4"),
        ("network", "<u4"), ("flush", "<u4"), ("busy", "<u4"), ("zero", "<u4"), ("busy_from_ns", "<u8"),
    ]
)  # fmt: skip
TRANSFER_UNIT_NS, SENT, RECEIVED = 100, 1, 2
assert TRANSFERS.itemsize == RECORD_BYTES
assert (COMM.itemsize, RECORD.itemsize) == (COMM_BYTES, RECORD_BYTES)
#: `function` - 1 -> name, as NCCL has it; 0 is a function that the plugin does not know.
FUNCTIONS = (
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv", "AlltoAll", "Scatter",
    "Gather", "AllGatherV", "PutSignal", "Signal", "WaitSignal",
)  # fmt: skip
#: `datatype` -> name, and bytes of an element; of 0, an unknown one, too.
DATATYPES = (
    "", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
    "float8e4m3", "float8e5m2",
)  # fmt: skip
DATATYPE_BYTES = (1, 1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


class BadRing(ValueError):
    """A file that no plugin of drumline has written, or that was damaged. No retry helps."""


class NotReady(Exception):
    """The process has not finished creating the file."""


def mark_names(marks: Array) -> list[str]:
    """Return the names of marks."""
    at = RECORD_BYTES - MARK_NAME_BYTES
    names = np.ascontiguousarray(marks).view(np.uint8).reshape(-1, RECORD_BYTES)[:, at:]
    return [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in names]


def written(records: Array, position: int) -> Array:
    """Return which records are there: bool. `position`: of the first; a slot may hold a record of an earlier lap."""
    return np.asarray(records["number"] == (position + 1 + np.arange(len(records))).astype(np.uint64), bool)


@dataclass(frozen=True)
class RingHeader:
    """The header at one time. `numbers`: by HeaderField. `environment`: of the process, as far as it was copied."""

    numbers: tuple[int, ...]
    environment: dict[str, str]

    def __getitem__(self, name: HeaderField) -> int:
        return self.numbers[name]


class RingFile:
    """Reads one ring. Every method accesses the disk and raises OSError, and BadRing for what no plugin writes.

    `name`: of the file, in the folder with the descriptor `directory`. `about`: status when it was opened.
    """

    def __init__(self, name: str, directory: int) -> None:
        self.name = name
        try:
            self._descriptor = open_file(name, os.O_RDWR, directory, any_owner=True)
        except BadSpool as error:
            raise BadRing(str(error)) from None
        self.about = os.fstat(self._descriptor)
        try:
            if self.about.st_nlink != 1:
                raise BadRing(f"{name} has {self.about.st_nlink} names: it may be a file of another folder")
            if self._is_new():
                raise NotReady
            header = self.header()
            if header[HeaderField.VERSION] != LAYOUT:
                raise BadRing(f"{name} has layout {header[HeaderField.VERSION]}, this agent knows {LAYOUT}")
            self.capacity = header[HeaderField.CAPACITY]
            if not LEAST_RECORDS <= self.capacity <= MOST_RECORDS:
                raise BadRing(f"{name} states {self.capacity} records, possible are {LEAST_RECORDS}..{MOST_RECORDS}")
            size = HEADER_BYTES + MAX_COMMS * COMM_BYTES + self.capacity * RECORD_BYTES
            if self.about.st_size != size:
                raise BadRing(f"{name} has {self.about.st_size} bytes, its {self.capacity} records need {size}")
        except BaseException:
            self.close()
            raise
        self.created_ns, self.pid = header[HeaderField.CREATED_NS], header[HeaderField.PID]

    def _is_new(self) -> bool:
        """Return whether its process may be creating it still: the magic number comes last."""
        young = time.time() - self.about.st_mtime < CREATION_S
        return young and os.pread(self._descriptor, 8, HeaderField.MAGIC * 8) in (b"", bytes(8))

    def header(self) -> RingHeader:
        """Return the header as it is now."""
        data = self._pread(HEADER_BYTES, 0)
        numbers = np.frombuffer(data, "<u8", len(HeaderField))
        if int(numbers[HeaderField.MAGIC]) != MAGIC:
            raise BadRing(f"{self.name} is no ring of drumline")
        texts = data[ENVIRONMENT:].partition(b"\0\0")[0].decode(errors="replace").split("\0")
        return RingHeader(tuple(numbers.tolist()), dict(text.split("=", 1) for text in texts if "=" in text))

    def communicators(self) -> Array:
        """Return the table of communicators (COMM), as it is now."""
        return np.frombuffer(self._pread(MAX_COMMS * COMM_BYTES, HEADER_BYTES), COMM)

    def records(self, first: int, end: int) -> Array:
        """Return the records (RECORD) at positions `first` to `end`, at most MOST_READ of them."""
        end = min(end, first + MOST_READ)
        begin, parts = HEADER_BYTES + MAX_COMMS * COMM_BYTES, []
        while first < end:
            at = first % self.capacity
            count = min(end - first, self.capacity - at)
            parts.append(self._pread(count * RECORD_BYTES, begin + at * RECORD_BYTES))
            first += count
        return np.frombuffer(b"".join(parts), RECORD)

    def set_read(self, position: int) -> None:
        """Tell the process that the records before `position` may be overwritten."""
        os.pwrite(self._descriptor, position.to_bytes(8, "little"), HeaderField.READ * 8)

    def request_times(self, until_ns: int) -> None:
        """Ask the process to measure all its steps until a time; ns since the epoch."""
        os.pwrite(self._descriptor, until_ns.to_bytes(8, "little"), HeaderField.TIMES_REQUESTED * 8)

    def process_ended(self) -> bool:
        """Return whether the process has ended, in any way: then its lock is free."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return True

    def process(self) -> int:
        """Return the process that holds the lock, as this pid namespace numbers it; 0 = not known."""
        with open("/proc/locks") as locks:
            for line in locks:
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5].endswith(f":{self.about.st_ino}"):
                    return int(fields[4])
        return 0

    def is_in(self, directory: int) -> bool:
        """Return whether it is still the file of its name in a folder."""
        try:
            now = os.stat(self.name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return (now.st_dev, now.st_ino) == (self.about.st_dev, self.about.st_ino)

    def delete(self, directory: int) -> None:
        """Delete it, if it is still in the folder."""
        if self.is_in(directory):
            os.unlink(self.name, dir_fd=directory)

    def _pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise BadRing(f"{self.name} ends at byte {offset + len(data)}: it was cut short")
        return data

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
