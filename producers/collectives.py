"""Collectives: which NCCL kernel belongs to which NCCL call, hence to which communicator and step.

The k-th NCCL kernel in launch order (correlation id) is the k-th NCCL call by start of its NVTX range. It is only
believed when counts are equal, operation names agree and no kernel starts before its call. Where that fails, calls
between ncclGroupStart and ncclGroupEnd are taken as one launch per communicator; where that fails too, each kind of
operation is matched on its own; what still does not match is attributed to nobody, and its steps are marked as skipped.
"""

from __future__ import annotations

import numpy as np

from drumline.producers import nccl
from drumline.producers.activity import ends
from drumline.producers.calls import Calls, grouped
from drumline.producers.intervals import Union
from drumline.producers.table import Table
from drumline.schemas.columns import Array

#: CUPTI converts GPU time to host time; how far a kernel may seem to start before the call that launched it.
CLOCK_SLACK_NS = 100_000


def pair(kernel_class: Array, kernel_start: Array, each: Calls, group: Array) -> tuple[Calls, Array]:
    """The calls (grouped or not) and, for each NCCL kernel in launch order, the index of its call or -1.

    `kernel_class`: operation codes as nccl.kernel_operations gives them (0 = says nothing, agrees with any).
    """
    if len(each.start_ns) == 0 or len(kernel_class) == 0:
        return each, np.full(len(kernel_class), -1, np.int64)
    candidates = [each] + ([grouped(each, group)] if group.any() else [])
    for option in candidates:
        if len(option.start_ns) == len(kernel_class) and _believable(kernel_class, kernel_start, option):
            return option, np.arange(len(kernel_class))
    option = candidates[-1]
    wanted = nccl.kernel_class(option.operation)
    found = np.full(len(kernel_class), -1, np.int64)
    for one in np.unique(kernel_class):
        kernels, among = np.flatnonzero(kernel_class == one), np.flatnonzero(wanted == one)
        if len(kernels) == len(among) and _believable(kernel_class[kernels], kernel_start[kernels], option.take(among)):
            found[kernels] = among
    return option, found


def _believable(kernel_class: Array, kernel_start: Array, option: Calls) -> bool:
    agrees = (kernel_class == 0) | (kernel_class == nccl.kernel_class(option.operation))
    return bool(agrees.all() and (kernel_start >= option.start_ns - CLOCK_SLACK_NS).all())


def table(kernels: Table, called: Calls, call_of: Array, call_step: Array, busy: Union) -> tuple[Table, int]:
    """(rows of gpu.collective.v1 with their `communicator` as u8 hash, in launch order; how many were left out).

    `kernels`: the NCCL kernels in launch order; `call_of` from pair(); `call_step`: step of each call, -1 = none;
    `busy`: when kernels that are not NCCL's, or copies, ran.
    """
    keep = np.flatnonzero(call_of >= 0)
    keep = keep[called.known[call_of[keep]]]
    call = call_of[keep]
    communicator, step = called.communicator[call], call_step[call]
    start, end = kernels["start_ns"][keep], ends(kernels)[keep]
    order = np.lexsort((np.arange(len(keep)), step, communicator))
    ordinal = np.empty(len(keep), np.int32)
    if len(keep):
        new = np.concatenate(
            [[True], (np.diff(step[order]) != 0) | (communicator[order][1:] != communicator[order][:-1])]
        )
        first = np.flatnonzero(new)
        ordinal[order] = np.arange(len(keep)) - first[np.cumsum(new) - 1]
    columns = {
        "communicator": communicator,
        "operation": called.operation[call],
        "bytes": called.bytes[call],
        "step": step,
        "ordinal": ordinal,
        "start_ns": start,
        "duration_ns": end - start,
        "covered_ns": busy.covered(start, end),
    }
    return Table(columns, {"operations": nccl.OPERATIONS}), len(call_of) - len(keep)
