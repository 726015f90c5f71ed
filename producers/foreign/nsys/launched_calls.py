"""The call of each NCCL kernel in an export, by the runtime call that launched it.

An export is a piece of a process: its first kernels were called before it began, and its last calls have no kernel, so
the k-th call need not be that of the k-th kernel. The launch has the kernel's correlation id and the host's clock.
"""

from __future__ import annotations

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls, grouped, groups, nccl_calls, until_launched
from drumline.producers.derive.nccl.launch_records import calls_of
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.foreign.collective_calls import CollectiveCalls, call_markers, joined_markers
from drumline.producers.foreign.nsys.activity_tables import KERNELS, THREAD_BITS
from drumline.producers.foreign.nsys.database import NsysDatabase
from drumline.schemas.columns import Array

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def launch_times(database: NsysDatabase, process: int, epoch_ns: int, kernels: Table) -> Array:
    """Return when the host launched each kernel, in ns since the epoch; -1 = not recorded."""
    out = np.full(kernels.rows, -1, np.int64)
    if not kernels.rows or not database.has_columns(RUNTIME, "start", "correlationId", "globalTid"):
        return out
    where = (
        f"(globalTid >> {THREAD_BITS}) = ? AND correlationId IN (SELECT k.correlationId FROM {KERNELS} k "
        "JOIN StringIds s ON s.id = k.demangledName WHERE k.globalPid = ? AND s.value LIKE '%nccl%')"
    )
    wanted = {"id": ("correlationId", np.int64), "start": ("start", np.int64)}
    rows = database.columns(RUNTIME, wanted, where, (process >> THREAD_BITS, process))
    order = np.lexsort((-rows["start"], rows["id"]))  # of a nested call the last began inside the kept_markers
    ids, first = np.unique(rows["id"][order], return_index=True)
    if len(ids):
        at = np.minimum(np.searchsorted(ids, kernels["correlation"]), len(ids) - 1)
        out = np.where(ids[at] == kernels["correlation"], rows["start"][order][first][at] + epoch_ns, -1)
    return np.asarray(out)


def with_calls(markers: Table, payloads: Table, kernels: Table, launched_ns: Array) -> tuple[Table, Table]:
    """Return (markers, payloads) in which each NCCL kernel has one call; ranges of other domains stay.

    `launched_ns`: of each kernel, -1 = unknown. A kernel whose launch lies in no call has its own operation, and a
    communicator that is a guess.
    """
    is_nccl = nccl.is_kernel(kernels.dictionaries["names"])
    rows = np.flatnonzero(is_nccl[kernels["name"]]) if kernels.rows else np.empty(0, np.int64)
    if not len(rows) or (launched_ns[rows] < 0).all():
        return markers, payloads
    rows = rows[np.lexsort((kernels["start_ns"][rows], kernels["correlation"][rows]))]
    ranges, _ = nested_ranges(markers)
    called = _sections(ranges, payloads)
    call = calls_of(launched_ns[rows], called.start_ns, called.end_ns)
    from_name = nccl.kernel_operations(kernels.dictionaries["names"])[kernels["name"][rows]]
    is_known = (call >= 0) & np.append(called.communicator_known, False)[call]
    operation = np.where(call >= 0, np.append(called.operation, np.uint8(0))[call], from_name)
    communicator = np.where(is_known, np.append(called.communicator, np.uint64(0))[call], nccl.guess(0, operation))
    calls = CollectiveCalls(
        launch_ns=np.maximum(launched_ns[rows], 0),
        start_ns=kernels["start_ns"][rows],
        operation=operation.astype(np.uint8),
        communicator=communicator.astype(np.uint64),
        bytes=np.where(call >= 0, np.append(called.bytes, np.uint64(0))[call], 0).astype(np.uint64),
        peer=np.where(call >= 0, np.append(called.peer, np.int32(-1))[call], -1).astype(np.int32),
    )
    kept_markers = markers.take(~_of_nccl(markers)) if markers.rows else markers
    first = int(kept_markers["id"].max()) + 1 if kept_markers.rows else 1
    new, payloads = call_markers(calls, first)
    return joined_markers(kept_markers, new), payloads


def _sections(ranges: Table, payloads: Table) -> NcclCalls:
    """Return the calls, those of a group as one; each ends when its kernel was launched."""
    calls = nccl_calls(ranges, payloads)
    if not len(calls.start_ns):
        return calls
    group = groups(ranges, calls.start_ns, np.empty(0, np.int64))
    return grouped(until_launched(calls, group, ranges), group)


def _of_nccl(markers: Table) -> Array:
    domain = np.array([name == nccl.DOMAIN for name in markers.dictionaries["domains"]], dtype=bool)
    return np.asarray(domain[markers["domain"]])
