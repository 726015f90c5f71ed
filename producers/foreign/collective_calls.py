"""Markers and payloads that stand for NCCL's calls, for traces that have NCCL's kernels and know their operations.

Derivation matches each kernel with a call, as CUPTI and NCCL's NVTX ranges record them. A trace that states of each
kernel what it is has such a pair a kernel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.schemas.columns import Array


@dataclass(frozen=True)
class CollectiveCalls:
    """Holds a call for each NCCL kernel of a process, arrays of equal length in launch order.

    Attributes:
        launch_ns: when the host launched the kernel; int64 ns, 0 = unknown.
        start_ns: when the kernel began; int64 ns.
        operation: index into nccl.names.OPERATIONS; u1.
        communicator: u8.
        bytes: of the message, 0 = unknown; u8.
        peer: rank that a send or receive is with, -1 = unknown; i4. None = unknown for all.
    """

    launch_ns: Array
    start_ns: Array
    operation: Array
    communicator: Array
    bytes: Array
    peer: Array | None = None


def communicator_hash(*parts: str) -> int:
    """Return the hash that stands for a communicator of these names, the same on all ranks; u8, never a guess."""
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def call_markers(calls: CollectiveCalls, first_id: int) -> tuple[Table, Table]:
    """Return (markers, payloads) as Activity has them; marker ids are `first_id`, `first_id` + 1, ...

    Calls begin 1 ns or more after the call before, so that the k-th kernel is of the k-th call. Operations without a
    name of an NCCL function (SendRecv, and unknown ones) are written as receives, which no verdict compares.
    """
    count = len(calls.start_ns)
    order = np.arange(count)
    launch = np.where(calls.launch_ns > 0, np.minimum(calls.launch_ns, calls.start_ns), calls.start_ns)
    begin = np.maximum.accumulate(launch - order) + order
    ids = (first_id + order).astype(np.uint32)
    unnamed = np.isin(calls.operation, (0, nccl.SEND_RECV))
    named = np.where(unnamed, nccl.OPERATIONS.index("Recv"), calls.operation)
    names = [f"nccl{operation}" for operation in nccl.OPERATIONS]
    markers = Table(
        {
            "id": np.repeat(ids, 2),
            "time_ns": np.repeat(begin, 2) + np.tile([0, 1], count),
            "flags": np.tile(np.array([MARKER_START, MARKER_END], np.int32), count),
            "name": np.repeat(named.astype(np.uint32), 2),
            "domain": np.zeros(2 * count, np.uint32),
        },
        {"names": names, "domains": (nccl.DOMAIN,)},
    )
    payloads = Table(
        {
            "id": ids,
            "communicator": calls.communicator.astype(np.uint64),
            "bytes": calls.bytes.astype(np.uint64),
            "peer": np.full(count, -1, np.int32) if calls.peer is None else calls.peer,
        }
    )
    return markers, payloads


def joined_markers(first: Table, second: Table) -> Table:
    """Return markers of two tables as one, with their dictionaries one behind the other."""
    columns = {}
    for column in first.columns:
        shift = {"name": len(first.dictionaries["names"]), "domain": len(first.dictionaries["domains"])}.get(column, 0)
        moved = second[column] + np.asarray(shift, second[column].dtype)
        columns[column] = np.concatenate([first[column], moved])
    return Table(
        columns, {name: (*first.dictionaries[name], *second.dictionaries[name]) for name in first.dictionaries}
    )
