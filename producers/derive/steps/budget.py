"""The GPU's time budget in each step of one rank.

The host runs ahead of the GPU by up to a step, so a step's host times do not bound its GPU work. A step's budget
interval ends with the last collective that was *called* in the step: all ranks leave a collective together, so the
intervals of all ranks are comparable without a common clock. Work after the last collective (the optimizer) counts
into the next step.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from drumline.producers.activity.activity import HOST_COPIES, HOST_TO_HOST, end_ns
from drumline.producers.activity.intervals import IntervalUnion, union
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.steps.host_columns import UNKNOWN, host_columns
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: Names of ranges in which the host fetches input: torch.utils.data's under emit_nvtx, and common ones.
INPUT_PATTERN = r"(?i)data.?load|next.?batch|(get|fetch|load).?(batch|data)|batch.?gener"
#: CUpti_ActivityMemoryKind: host memory that CUDA has to stage.
PAGEABLE = 1


@dataclass(frozen=True)
class GpuBusy:
    """Times at which the GPU was busy, by kind.

    Attributes:
        compute: kernels outside NCCL, memsets and copies that stay on devices.
        copy: copies between host and device.
        comm: NCCL kernels.
        compute_or_copy, compute_or_comm, any: unions of these.
    """

    compute: IntervalUnion
    copy: IntervalUnion
    comm: IntervalUnion
    compute_or_copy: IntervalUnion
    compute_or_comm: IntervalUnion
    any: IntervalUnion


@dataclass(frozen=True)
class StepInputs:
    """Inputs of the budgets besides the steps' host times, arrays by step.

    Attributes:
        last_collective_ns: end of the step's last collective; 0 = none.
        collectives: number of collectives.
        skipped: see gpu.step.v1.
        kernels: all kernels of the process.
        is_nccl: which kernels are NCCL's.
        gpu: see gpu_busy().
        pageable: see pageable(); None = unknown.
        input_ranges: see input_time(); None = unknown.
        host: columns of host_columns.py; none = unknown.
        sampled: see derive(); bool.
    """

    last_collective_ns: Array
    collectives: Array
    skipped: Array
    kernels: Table
    is_nccl: Array
    gpu: GpuBusy
    pageable: IntervalUnion | None = None
    input_ranges: IntervalUnion | None = None
    host: Mapping[str, Array] = field(default_factory=dict)
    sampled: bool = False


def gpu_busy(kernels: Table, is_nccl: Array, copies: Table) -> GpuBusy:
    """Return when the GPU was busy; `is_nccl`: which kernels are NCCL's."""
    start, end = kernels["start_ns"], end_ns(kernels)
    between = np.isin(copies["kind"], HOST_COPIES)
    on_device = ~between & (copies["kind"] != HOST_TO_HOST)
    c_start, c_end = copies["start_ns"], end_ns(copies)
    compute = union((start[~is_nccl], end[~is_nccl]), (c_start[on_device], c_end[on_device]))
    copy = union((c_start[between], c_end[between]))
    comm = union((start[is_nccl], end[is_nccl]))
    compute_or_copy = union(compute, copy)
    return GpuBusy(compute, copy, comm, compute_or_copy, union(compute, comm), union(compute_or_copy, comm))


def pageable(copies: Table) -> IntervalUnion:
    """Return when copies between the device and pageable host memory ran."""
    rows = np.isin(copies["kind"], HOST_COPIES) & ((copies["src_kind"] == PAGEABLE) | (copies["dst_kind"] == PAGEABLE))
    return union((copies["start_ns"][rows], end_ns(copies)[rows]))


def input_time(ranges: Table, pattern: str = INPUT_PATTERN) -> IntervalUnion | None:
    """Return when the host was in a range that fetches input; None if the process has no such range."""
    compiled = re.compile(pattern)
    named = np.array([compiled.search(name) is not None for name in ranges.dictionaries["names"]], dtype=bool)
    outside_nccl = np.array([name != nccl.DOMAIN for name in ranges.dictionaries["domains"]], dtype=bool)
    if ranges.rows == 0:
        return None
    rows = ranges.take(named[ranges["name"]] & outside_nccl[ranges["domain"]])
    return union((rows["start_ns"], end_ns(rows))) if rows.rows else None


def gpu_intervals(steps: Steps, last_collective_ns: Array, sampled: bool = False) -> tuple[Array, Array]:
    """Return (start, end) of each step's budget interval; `last_collective_ns` as in StepInputs.

    From the end of the previous step's last collective to that of this one. A step without collectives keeps its host
    times, and the step after it starts at its own host start. `sampled`: so does a step behind steps that were not
    recorded, as recording begins with it.
    """
    has = last_collective_ns > 0
    previous = np.concatenate([[0], last_collective_ns[:-1]])
    if sampled:
        previous[1:][np.diff(steps.number) > 1] = 0
    start = np.where(has & (previous > 0), previous, steps.start_ns)
    end = np.where(has, last_collective_ns, steps.end_ns)
    return start, np.maximum(end, start)


def intervals(steps: Steps, start: Array, end: Array) -> dict[str, Array]:
    """Return the columns of number and times of steps; `start`, `end`: of their intervals on the GPU."""
    return {
        "step": steps.number,
        "start_ns": steps.start_ns,
        "duration_ns": steps.end_ns - steps.start_ns,
        "gpu_start_ns": start,
        "gpu_duration_ns": end - start,
    }


def unknown_budgets(steps: Steps, step_index: Array, call_of: Array, sampled: bool = False) -> Array:
    """Return the steps whose budget is unknown: bool. `step_index`: of each call; `call_of`: of each kernel.

    That is: a kernel of the step is unmatched, or the last one of the step before, which is when the budget begins, or
    the step before itself is missing (not where steps are `sampled`, see gpu_intervals()).
    """
    attributed = np.zeros(len(step_index), bool)
    attributed[call_of[call_of >= 0]] = True
    skipped = np.zeros(len(steps.number), bool)
    skipped[step_index[(step_index >= 0) & ~attributed]] = True
    inside = np.flatnonzero(step_index >= 0)
    final = inside[np.flatnonzero(np.diff(step_index[inside], append=-1) != 0)]  # the last call of each step
    after = step_index[final[~attributed[final]]] + 1
    skipped[after[after < len(skipped)]] = True
    number_gaps = np.diff(steps.number)
    if len(number_gaps) and not sampled:
        skipped[1:] |= number_gaps > np.median(number_gaps)
        skipped[0] |= np.argmax(np.append(call_of, 0) >= 0) > 0  # recording began in the middle of the job
    return skipped


def budgets(steps: Steps, inputs: StepInputs) -> Table:
    """Return columns of gpu.step.v1.

    compute + copy + comm_exposed + idle = gpu_duration holds exactly, as the unions are nested.
    """
    gpu, kernels = inputs.gpu, inputs.kernels
    start, end = gpu_intervals(steps, inputs.last_collective_ns, inputs.sampled)
    compute, copy, comm = (part.covered(start, end) for part in (gpu.compute, gpu.copy, gpu.comm))
    compute_or_copy, any_busy = gpu.compute_or_copy.covered(start, end), gpu.any.covered(start, end)
    work = np.flatnonzero(~inputs.is_nccl)
    work = work[np.argsort(kernels["start_ns"][work], kind="stable")]
    at = kernels["start_ns"][work]
    blocks = kernels["grid_x"].astype(np.int64) * kernels["grid_y"] * kernels["grid_z"]
    total = np.concatenate([[0], np.cumsum(blocks[work])])
    low, high = np.searchsorted(at, start), np.searchsorted(at, end)
    unknown = np.full(len(start), -1, np.int64)
    input_idle = unknown
    if inputs.input_ranges is not None:  # idle and in such a range
        either = union((gpu.any.start, gpu.any.end), (inputs.input_ranges.start, inputs.input_ranges.end))
        input_idle = either.covered(start, end) - any_busy
    return Table(
        {
            **intervals(steps, start, end),
            "compute_ns": compute,
            "compute_overlapped_ns": compute + comm - gpu.compute_or_comm.covered(start, end),
            "copy_ns": compute_or_copy - compute,
            "copy_total_ns": copy,
            "copy_pageable_ns": unknown if inputs.pageable is None else inputs.pageable.covered(start, end),
            "comm_ns": comm,
            "comm_exposed_ns": any_busy - compute_or_copy,
            "idle_ns": (end - start) - any_busy,
            "launch_late_ns": unknown,
            "input_ns": input_idle,
            **(inputs.host or host_columns([UNKNOWN] * len(start))),
            "kernels": high - low,
            "blocks": total[high] - total[low],
            "collectives": inputs.collectives,
            "skipped": inputs.skipped.astype(np.uint8),
        }
    )
