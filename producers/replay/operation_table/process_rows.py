"""Rows of gpu.collective.v1 and gpu.step.v1 of one process, from times of its operations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.intervals import IntervalUnion, union
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import ordinals
from drumline.producers.derive.steps.budget import gpu_intervals, intervals
from drumline.producers.derive.steps.host_columns import UNKNOWN, host_columns
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

NO_WAITING = IntervalUnion(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Communication:
    """Holds the communication of one process, arrays of equal length in the order of its launches; times are ns.

    Attributes:
        communicator: hash; u8.
        operation: index into nccl.names.OPERATIONS; u1.
        bytes: message size, 0 = unknown; u8.
        step: number of the step; int64.
        start_ns, end_ns: int64.
    """

    communicator: Array
    operation: Array
    bytes: Array
    step: Array
    start_ns: Array
    end_ns: Array


@dataclass(frozen=True)
class ProcessRows:
    """Holds the rows of one process.

    Attributes:
        collectives: columns of gpu.collective.v1, and `communicator` (u8).
        steps: columns of gpu.step.v1.
        unrecorded_ns: [steps] waits that no operation stands for (unrecorded_waiting.py). They count as exposed
            communication.
    """

    collectives: Table
    steps: Table
    unrecorded_ns: Array


def process_rows(
    communication: Communication,
    compute: tuple[Array, Array],
    steps: Steps,
    kernels: tuple[Array, Array] | None = None,
    gc_ns: Array | None = None,
    waiting: IntervalUnion = NO_WAITING,
) -> ProcessRows:
    """Return the rows of a process.

    `compute`: starts and ends of its compute operations. `kernels`: kernels and blocks of each step; without them each
    compute operation counts as a kernel. `gc_ns`: time of each step in which the host collected garbage; None =
    unknown. `waiting`: for what is not in `communication`.
    """
    comm = union((communication.start_ns, communication.end_ns), waiting)
    at = np.searchsorted(steps.number, communication.step)
    last = np.zeros(len(steps.number), np.int64)
    np.maximum.at(last, at, communication.end_ns)
    start, end = gpu_intervals(steps, last)
    busy = union(compute)
    compute_ns, any_ns = busy.covered(start, end), union(busy, comm).covered(start, end)
    comm_ns = comm.covered(start, end)
    counted = np.sort(compute[0])
    counts = np.searchsorted(counted, end) - np.searchsorted(counted, start)
    none, unknown = np.zeros(len(start), np.int64), np.full(len(start), -1, np.int64)
    host = dict(host_columns([UNKNOWN] * len(start)))
    rows = Table(
        {
            **intervals(steps, start, end),
            "compute_ns": compute_ns,
            "compute_overlapped_ns": compute_ns + comm_ns - any_ns,
            "copy_ns": none,
            "copy_total_ns": unknown,
            "copy_pageable_ns": unknown,
            "comm_ns": comm_ns,
            "comm_exposed_ns": any_ns - compute_ns,
            "idle_ns": end - start - any_ns,
            "launch_late_ns": unknown,
            "input_ns": unknown,
            **host,
            **({} if gc_ns is None else {"gc_ns": gc_ns}),
            "kernels": counts if kernels is None else kernels[0],
            "blocks": none if kernels is None else kernels[1],
            "collectives": np.bincount(at, minlength=len(start)),
            "skipped": none.astype(np.uint8),
        }
    )
    return ProcessRows(_collectives(communication, busy), rows, waiting.covered(start, end))


def _collectives(communication: Communication, busy: IntervalUnion) -> Table:
    columns = {
        "communicator": communication.communicator,
        "operation": communication.operation,
        "bytes": communication.bytes,
        "step": communication.step,
        "ordinal": _ordinals(communication),
        "start_ns": communication.start_ns,
        "duration_ns": communication.end_ns - communication.start_ns,
        "covered_ns": busy.covered(communication.start_ns, communication.end_ns),
    }
    return Table(columns, {"operations": nccl.OPERATIONS})


def _ordinals(communication: Communication) -> Array:
    """Return 0, 1, 2, ... per (communicator, step)."""
    index = np.unique(communication.communicator, return_inverse=True)[1].astype(np.uint16)
    return np.asarray(ordinals(index, communication.step))
