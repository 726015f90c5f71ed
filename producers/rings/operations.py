"""Outcome of the operations in a ring: which have ended, when they ran, which of them were one kernel.

Pure functions of records (ring_file.RECORD). Whoever writes a ring may write any number: nothing here fails on it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from drumline.producers.derive.light import UNTRUSTED, Operations
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.exchanges import with_all_to_all
from drumline.producers.rings.ring_file import DATATYPE_BYTES, FUNCTIONS, MAX_COMMS, RECORD, RECORD_BYTES
from drumline.producers.rings.trusted_times import untrusted
from drumline.schemas.columns import Array

#: NCCL tells of the end of an operation within this time; it calls the operations of one kernel within it; ns.
REPORT_NS, CALL_NS = 1_000_000_000, 10_000_000
#: How fast the GPU's clock and the host's may drift apart.
DRIFT = 200e-6
_FUNCTIONS = np.array(
    [0, *(int(nccl.range_operations([f"nccl{name}"])[0]) or int(nccl.kernel_operations([f"ncclKernel_{name}"])[0])
          for name in FUNCTIONS)], np.uint8,
)  # fmt: skip
_BYTES = np.array(DATATYPE_BYTES, np.uint64)
POINT_TO_POINT = [FUNCTIONS.index(name) + 1 for name in ("Send", "Recv")]
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Outcome:
    """Outcome of each operation, bool: `done`: nothing of it will change; `known`: it ran, at known times; `drifted`:
    it ran, and all that NCCL reports are the times of older operations; `none`: it is done, and NCCL never tells of it
    (to the rank itself, or not measured).
    """

    done: Array
    known: Array
    drifted: Array
    none: Array

    def take(self, index: Array | slice) -> Outcome:
        """Return the outcomes of the operations at these positions."""
        return Outcome(*(getattr(self, f.name)[index] for f in fields(self)))


def outcomes(records: Array, ranks: Array, now_ns: int, untimed: Array, *, ended: bool) -> Outcome:
    """Return the outcomes of operations, in the order of their calls.

    An operation is done when all its channels have stopped. Where their number is not known, or fewer ran: when those
    that started have stopped, and NCCL has had time to tell of more. One before another of its communicator that is
    done is over as well: NCCL lost its begin, or the stop of a channel. Those of one kernel run at the same time.
    `ranks`: of the communicators, by index. `untimed`: not measured; taken as done. `ended`: so has the process.
    """
    progress = records["progress"]
    started, stopped, drifted = channel_counts(progress)
    right = (progress >> np.uint64(32)) == (records["number"] & np.uint64(0xFFFFFFFF))
    even = right & (started == stopped)
    ran = even & (stopped + drifted > 0)
    called, seen = records["host_ns"].astype(np.int64), records["seen_ns"].astype(np.int64)
    # What drifted is reported before the operation runs: alone it ends nothing, and shows no earlier one to be over.
    full = ran & (stopped > 0) & (records["channels"] > 0) & (stopped + drifted >= records["channels"])
    full |= ran & (seen > 0) & (seen < now_ns - REPORT_NS)
    comm = records["comm"] % MAX_COMMS
    latest = np.full(MAX_COMMS, -1, np.int64)
    reported = np.flatnonzero(full & (stopped > 0) & (seen < now_ns - REPORT_NS))
    np.maximum.at(latest, comm[reported], _kernel_begins(records)[reported])
    passed = np.arange(len(records)) < latest[comm]
    none = untimed | np.isin(records["function"], POINT_TO_POINT) & (records["peer"] == ranks[comm])
    done = (full | passed | none) & (called < now_ns - CALL_NS)
    if ended:
        done = np.ones(len(records), bool)
    ran &= done & ~none
    return Outcome(done, ran & (stopped > 0), ran & (stopped == 0), none)


def _kernel_begins(records: Array) -> Array:
    """Return the position of the first operation of each operation's kernel."""
    plan = records["plan"].astype(np.int64)
    key = np.where(plan > 0, plan * MAX_COMMS + records["comm"] % MAX_COMMS, -1 - np.arange(len(records)))
    _, first, kernel = np.unique(key, return_index=True, return_inverse=True)
    return np.asarray(first[kernel])


def channel_counts(progress: Array) -> tuple[Array, Array, Array]:
    """Return the channels of each operation that started, stopped, and reported an older operation's times."""
    byte = np.uint64(0xFF)
    return progress >> np.uint64(16) & byte, progress & byte, progress >> np.uint64(24) & byte


def are_drifted(records: Array) -> Array:
    """Return which operations reported an older operation's times for all channels: bool. NCCL reports that early."""
    started, _, drifted = channel_counts(records["progress"])
    return np.asarray((started == 0) & (drifted > 0) & (drifted >= records["channels"]), bool)


def taken(records: Array, at: Array | slice) -> Array:
    """Return the records at these positions; without their fields numpy copies them in half the time."""
    return records.view(f"V{RECORD_BYTES}")[at].view(RECORD)


def clock_offset(records: Array, known: Array, before: tuple[int, int] | None, now_ns: int) -> tuple[int, int] | None:
    """Return what to add to the GPU's time to get the host's, and when that was found out; None = not known yet.

    NCCL's proxy thread sees the end of an operation some time after it, so the least difference is the nearest.
    `before`: the last answer. `known`: which operations ran at known times.
    """
    seen, stop = records["seen_ns"], records["gpu_stop_ns"]
    difference = (seen - stop).view(np.int64)[known & (seen > 0)]
    drifted = before and before[0] + int(DRIFT * max(0, now_ns - before[1]))
    least = [value for value in (drifted, int(difference.min()) if len(difference) else None) if value is not None]
    return (min(least), now_ns) if len(difference) else before


def kernel_starts(records: Array, steps: Array) -> Array:
    """Return the position of the first operation of each kernel; those of a communicator lie beside each other."""
    comm, plan = records["comm"].astype(np.uint16), records["plan"].astype(np.uint32)
    same = (comm[1:] == comm[:-1]) & (plan[1:] == plan[:-1]) & (plan[1:] > 0) & (steps[1:] == steps[:-1])
    return np.flatnonzero(np.append(True, ~same)[: len(records)])


def function_codes(records: Array, first: Array) -> tuple[Array, Array]:
    """Return operation (index into nccl.names.OPERATIONS) and bytes of each kernel; `first`: see kernel_starts."""
    operation = _FUNCTIONS[np.where(records["function"] <= len(FUNCTIONS), records["function"], 0)]
    size = records["count"] * _BYTES[np.where(records["datatype"] < len(_BYTES), records["datatype"], 0)]
    if len(first) < len(records):
        same = np.minimum.reduceat(operation, first) == np.maximum.reduceat(operation, first)
        size = np.add.reduceat(size, first)
        of_kernel = np.where(same, operation[first], nccl.operation_class(operation)[first])
        operation = with_all_to_all(of_kernel, operation, records["peer"], first)
    return operation, size


def as_operations(records: Array, outcome: Outcome, steps: Array, offset_ns: int | None) -> tuple[Operations, int]:
    """Return operations, those of one kernel as one, as CUPTI sees them, and how many records have untrusted times.

    `communicator` is the index in the ring's table. `stop_ns` is 0 where an operation ran at unknown times, and
    UNTRUSTED where NCCL reports another one's. A kernel has the times of those of its operations that have them, if
    these are no less than half: they run at once. One that sends and receives stops when it has sent: the thread that
    writes the time does not wait for the half that receives (NCCL 2.28.9, src/device/sendrecv.h).
    """
    comm = records["comm"].astype(np.uint16)
    if (comm[1:] < comm[:-1]).any():
        order = np.argsort(comm, kind="stable")
        records, outcome, steps, comm = taken(records, order), outcome.take(order), steps[order], comm[order]
    first = kernel_starts(records, steps)
    operation, size = function_codes(records, first)
    called = records["host_ns"].astype(np.int64)
    none, drifted = outcome.none, outcome.drifted
    known = outcome.known & (offset_ns is not None)
    start = np.where(known, records["gpu_start_ns"].astype(np.int64) + (offset_ns or 0), _FAR)
    stop = np.where(known, records["gpu_stop_ns"].astype(np.int64) + (offset_ns or 0), 0)
    if len(first) < len(records):
        whole = np.logical_and.reduceat(known | none | drifted, first)
        start, stop = np.minimum.reduceat(start, first), np.maximum.reduceat(stop, first) * whole
        comm, steps, called, none = comm[first], steps[first], called[first], np.logical_and.reduceat(none, first)
        timed, drifted = np.add.reduceat(known.astype(int), first), np.add.reduceat(drifted.astype(int), first)
        drifted = whole & (drifted > timed)
        known = whole & ~drifted & (timed > 0)
    no_times = drifted | untrusted(comm, called, start, stop, known & ~drifted)
    stop = np.where(no_times, UNTRUSTED, stop)
    operations = Operations(
        communicator=comm,
        call_ns=called,
        start_ns=np.where(stop > 0, start, called),
        stop_ns=stop,
        step=steps,
        operation=operation,
        bytes=size,
    )
    length = np.diff(np.append(first, len(records)))
    return operations.take(~none) if none.any() else operations, int(length[no_times].sum())
