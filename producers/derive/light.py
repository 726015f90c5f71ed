"""Rows of collectives and steps from NCCL operations alone: when each was called, and when it ran on the GPU.

No other kernel is known. Where the host had called an operation that the GPU had not begun, the GPU was busy with what
came before: that time counts as compute. Where neither an operation ran nor one was waited for, the GPU had nothing to
do that the host knew of: idle.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from drumline.producers.activity.intervals import union
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import ordinals
from drumline.producers.derive.steps.budget import gpu_intervals, intervals, unknown_budgets
from drumline.producers.derive.steps.host_columns import UNKNOWN, host_columns
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: `stop_ns` of an operation whose times NCCL takes from another one.
UNTRUSTED = -1
#: Most of a step in which operations without times may have run, for the step to have a budget: half of the least share
#: that a verdict states (streams/core/thresholds.py).
MOST_UNKNOWN = 0.01


@dataclass(frozen=True)
class Operations:
    """NCCL operations of one process, arrays of equal length; those of a communicator in the order of their calls.

    Times are ns of one clock, the host's.

    Attributes:
        communicator: index of the communicator; u2.
        call_ns: when the host called it (for a CUDA graph: launched the graph); int64.
        start_ns, stop_ns: when it ran on the GPU; int64. stop_ns = 0: not known, or the record was lost; UNTRUSTED.
        step: number of the step that it was called in; int64, -1 = none.
        operation: index into nccl.names.OPERATIONS; u1.
        bytes: message size; u8.
    """

    communicator: Array
    call_ns: Array
    start_ns: Array
    stop_ns: Array
    step: Array
    operation: Array
    bytes: Array

    def take(self, index: Array) -> Operations:
        """Return the operations at these positions."""
        return Operations(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class LightRows:
    """Rows of gpu.collective.v1 (`communicator` as u8 hash) and gpu.step.v1; `unknown`: operations without times."""

    collectives: Table
    steps: Table
    unknown: int


def light_rows(operations: Operations, hashes: Array, steps: Steps) -> LightRows:
    """Return the rows of these operations and steps.

    `hashes`: of the communicators, u8. `steps`: numbers rise. A step's interval begins with the end of the last
    operation of the step before: to go on from earlier rows, pass that step and its operations again and drop its rows.
    An operation without times leaves a hole in the ordinals and its step without a budget; not one whose times are
    untrusted, while those around it bound when it ran to MOST_UNKNOWN of the step.
    """
    known = operations.stop_ns > 0
    return LightRows(_collectives(operations, known, hashes), _steps(operations, known, steps), int((~known).sum()))


def _collectives(operations: Operations, known: Array, hashes: Array) -> Table:
    columns = {
        "communicator": np.asarray(hashes, np.uint64)[operations.communicator],
        "operation": operations.operation,
        "bytes": operations.bytes,
        "step": operations.step,
        "ordinal": ordinals(operations.communicator, operations.step),
        "start_ns": operations.start_ns,
        "duration_ns": operations.stop_ns - operations.start_ns,
        "covered_ns": np.zeros(len(known), np.int64),  # by kernels that nobody recorded
    }
    return Table(columns, {"operations": nccl.OPERATIONS}).take(known)


def _steps(operations: Operations, known: Array, steps: Steps) -> Table:
    """Return columns of gpu.step.v1; a step without operations has no budget, as no interval is known."""
    may_last = _most_ns(operations)
    order = np.lexsort((operations.call_ns, operations.step))
    called, may_last = operations.take(order), may_last[order]
    known = called.stop_ns > 0
    at = np.searchsorted(steps.number, called.step)
    step_index = np.where(np.append(steps.number, -2)[at] == called.step, at, -1)
    inside = np.flatnonzero(known & (step_index >= 0))
    last, count = np.zeros(len(steps.number), np.int64), np.zeros(len(steps.number), np.int64)
    np.maximum.at(last, step_index[inside], called.stop_ns[inside])
    np.add.at(count, step_index[inside], 1)
    start, end = gpu_intervals(steps, last)
    ran = called.take(known)
    comm = union((ran.start_ns, ran.stop_ns))
    waiting = union((np.minimum(ran.call_ns, ran.start_ns), ran.start_ns))
    comm_ns, busy_ns = comm.covered(start, end), union(comm, waiting).covered(start, end)
    none, unknown = np.zeros(len(start), np.int64), np.full(len(start), -1, np.int64)
    has = count > 0
    bounded = (called.stop_ns == UNTRUSTED) & (step_index >= 0)
    unknown_ns = np.bincount(step_index[bounded], may_last[bounded], len(start))
    is_short = unknown_ns <= MOST_UNKNOWN * (end - start)
    budgeted = ~bounded | ~np.append(is_short, False)[step_index]
    skipped = unknown_budgets(steps, step_index[budgeted], np.flatnonzero(known[budgeted]))
    return Table(
        {
            **intervals(steps, start, end),
            "compute_ns": np.where(has, busy_ns - comm_ns, -1),
            "compute_overlapped_ns": none,
            "copy_ns": none,
            "copy_total_ns": unknown,
            "copy_pageable_ns": unknown,
            "comm_ns": comm_ns,
            "comm_exposed_ns": np.where(has, comm_ns, -1),
            "idle_ns": np.where(has, end - start - busy_ns, -1),
            "launch_late_ns": unknown,
            "input_ns": unknown,
            **host_columns([UNKNOWN] * len(start)),
            "kernels": none,
            "blocks": none,
            "collectives": count,
            "skipped": skipped.astype(np.uint8),
        }
    )


def _most_ns(operations: Operations) -> Array:
    """Return for how long each operation of untrusted times can have run, at most: between its call or the end of the
    operation before it in its communicator, and the begin of the next one. The largest number where none follows.
    """
    untrusted = operations.stop_ns == UNTRUSTED
    most = np.zeros(len(untrusted))
    if not untrusted.any():
        return most
    known, place = operations.stop_ns > 0, np.arange(len(untrusted))
    before = np.maximum.accumulate(np.where(known, place, -1))
    after = np.minimum.accumulate(np.where(known, place, len(place))[::-1])[::-1]
    communicator, stop = np.append(operations.communicator, -1), np.append(operations.stop_ns, 0)
    ended = np.where(communicator[before] == operations.communicator, stop[before], 0)
    begin = np.append(operations.start_ns.astype(np.float64), np.inf)
    begin = np.where(communicator[after] == operations.communicator, begin[after], np.inf)
    most[untrusted] = np.maximum(0, begin - np.maximum(ended, operations.call_ns))[untrusted]
    return most
