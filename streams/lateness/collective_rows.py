"""Rows of collectives, of lateness and of kinds, as arrays, and what the durations of each operation show."""

from __future__ import annotations

import zlib

import numpy as np

#: What the durations of an operation show. LOCKSTEP: no rank can leave before the last has entered. ROOTED: all wait
#: for one rank, which may leave before them: waiting, but no lateness. POINT_TO_POINT: two ranks. OTHER: nothing (a
#: leaf of a reduction may leave early).
OTHER, LOCKSTEP, POINT_TO_POINT, ROOTED = 0, 1, 2, 3
KIND = {
    **dict.fromkeys(("AllReduce", "AllGather", "ReduceScatter", "AllToAll"), LOCKSTEP),
    **dict.fromkeys(("Send", "Recv", "SendRecv"), POINT_TO_POINT),
    **dict.fromkeys(("Broadcast", "Scatter"), ROOTED),
}
#: Operations by their number in COLLECTIVE_ROW; other operations have larger numbers, see `operation_number`.
OPERATIONS = tuple(KIND)
ALL_TO_ALL, SEND_RECV = OPERATIONS.index("AllToAll"), OPERATIONS.index("SendRecv")
SEND, RECEIVE = OPERATIONS.index("Send"), OPERATIONS.index("Recv")
#: Operations whose end is that of sending, where NCCL measured them.
SENT = (ALL_TO_ALL, SEND_RECV)
#: Ranks of a communicator in which what one rank sends and receives at once, the other one receives and sends.
PAIR = 2
#: The use of sends and receives in a communicator, as gpu.lateness.v1 writes it.
EXCHANGE, PIPELINE = "exchange", "pipeline"

#: One collective of one rank, as the lateness stage keeps it. `lockstep`: KIND. `operation`: operation_number. `light`:
#: 1 = measured by NCCL, without other kernels.
COLLECTIVE_ROW = np.dtype(
    [
        ("rank", "<i4"),
        ("step", "<i8"),
        ("ordinal", "<i4"),
        ("lockstep", "u1"),
        ("light", "u1"),
        ("operation", "<u4"),
        ("bytes", "<u8"),
    ]
    + [(name, "<i8") for name in ("start_ns", "duration_ns", "covered_ns")]
)
SUMS = ("wait_ns", "lateness_ns", "exposed_wait_ns", "floor_ns")
#: One rank in one step: gpu.lateness.v1's columns. collectives = 0: the step could not be compared.
LATENESS_ROW = np.dtype(
    [
        *(("step", "<i8"), ("rank", "<i4"), ("collectives", "<i4")),
        *((name, "<i8") for name in SUMS),
        *(
            ("hidden_wait_ns", "<i8"),
            ("lag_ns", "<i8"),
            ("bytes", "<u8"),
            ("worst_ordinal", "<i4"),
            ("worst_operation", "u1"),
            ("worst_longest_ns", "<i8"),
            ("worst_own_ns", "<i8"),
        ),
    ]
)
#: Collectives of one operation and size in one step: their number, and the sum of their floors.
KIND_ROW = np.dtype(
    [("step", "<i8"), ("operation", "u1"), ("bytes", "<i8"), ("collectives", "<i4"), ("floor_ns", "<i8")]
)
#: Ranks of a slice of a large communicator, by their numbers. Part of state keys (stragglers/state.py).
SLICE_RANKS = 4096


def slice_of(rank: int) -> int:
    """Return the number of the slice that a rank is in. It does not change as other ranks come."""
    return rank // SLICE_RANKS


def operation_number(name: str) -> int:
    """Return the number of an operation, the same in every process."""
    return OPERATIONS.index(name) if name in KIND else 256 + (zlib.crc32(name.encode()) >> 1)
