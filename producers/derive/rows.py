"""From what a process did to what is published: rows of every topic. Pure: no clock, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import Activity, end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_matching as matching
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls, calls, grouped, groups, until_launched
from drumline.producers.derive.nccl.kernels import Launches, Told
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.derive.steps.budget import budgets, busy, input_time, pageable
from drumline.producers.derive.steps.inference import beat, inferred_steps
from drumline.producers.derive.steps.steps import INFERRED, STEP_PATTERN, Steps, marked_steps
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic


@dataclass(frozen=True)
class Counts:
    """What could not be told or read of one process."""

    unattributed_collectives: int = 0
    skipped_steps: int = 0
    unfinished_ranges: int = 0


@dataclass(frozen=True)
class Derived:
    """Rows of one process, columns as in the schemas. `collectives` has a `communicator` column too (u8 hash).
    `steps_from`: who says where steps are, see steps.py. `told`: the pairs made here, for the next stretch of a live
    process; `sure`: see collectives.pair()."""

    kernels: Table
    copies: Table
    collectives: Table
    steps: Table
    ranges: Table
    samples: Table
    counts: Counts
    invalid: dict[Topic, int]
    steps_from: str = ""
    told: Told | None = None
    sure: matching.Sure = matching.UNSURE


def derive(activity: Activity, pattern: str = STEP_PATTERN, since_ns: int = 0, told: Told | None = None) -> Derived:
    """Ranges, steps, collectives and budgets of a process. Pieces that are absent (no NVTX, no NCCL, no copies) give
    empty tables. `pattern`, `since_ns`: see host_steps. `told`: of a live process, what is known of it."""
    kernels = activity.kernels
    ranges, unfinished = nested_ranges(activity.markers)
    communication = nccl.is_kernel(kernels.dictionaries["names"])
    is_nccl = communication[kernels["name"]] if kernels.rows else np.zeros(0, bool)
    gpu = busy(kernels, is_nccl, activity.copies)
    # NCCL kernels of a CUDA graph have no range of their own: the calls were made when the graph was captured.
    launched = np.flatnonzero(is_nccl & (kernels["graph"] == 0))
    launched = launched[np.lexsort((kernels["start_ns"][launched], kernels["correlation"][launched]))]
    own = kernels.take(launched)
    operations = nccl.kernel_operations(kernels.dictionaries["names"])
    launches = Launches(
        operations[own["name"]] if own.rows else np.zeros(0, np.uint8),
        own["correlation"].astype(np.int64),
        own["start_ns"],
    )
    each = calls(ranges, activity.payloads)
    steps, source = marked_steps(ranges, pattern, since_ns)
    if len(each.start_ns) == 0 and own.rows:  # NCCL without NVTX: what ran stands for what was called
        each = matching.as_calls(launches)
        steps, source = inferred(launches, each)
    elif not source and len(each.start_ns):
        steps, source = inferred(launches, grouped(each, groups(ranges, each.start_ns, steps.start_ns)))
    ranges = Table({**ranges.columns, "step": steps.number_at(ranges["start_ns"])}, ranges.dictionaries)

    group = groups(ranges, each.start_ns, steps.start_ns)
    each = until_launched(each, group, ranges)
    called, call_of, sure = matching.pair(launches, each, group, steps, told)
    paired = call_of >= 0
    pairs = Told(launches.correlation[paired], called.start_ns[call_of[paired]])
    called = matching.by_stream(called, call_of, own)
    step_index = steps.index_at(called.start_ns)
    call_step = np.where(step_index >= 0, steps.number[step_index], -1) if len(steps.number) else step_index
    rows, left_out = matching.table(own, called, call_of, call_step, gpu.compute_or_copy)

    last, count = _per_step(steps, step_index, call_of, own)
    skipped = _skipped(steps, step_index, call_of)
    return Derived(
        kernels=kernels,
        copies=activity.copies,
        collectives=rows,
        steps=budgets(
            steps, last, count, skipped, kernels, is_nccl, gpu, pageable(activity.copies), input_time(ranges)
        ),
        ranges=ranges,
        samples=activity.samples,
        counts=Counts(left_out, int(skipped.sum()), unfinished),
        invalid=activity.invalid,
        steps_from=source,
        told=pairs,
        sure=sure,
    )


def inferred(launches: Launches, each: Calls) -> tuple[Steps, str]:
    """(steps that nobody marked, INFERRED; "" if there are none)."""
    apart = None
    if len(launches) == len(each.start_ns):
        apart = np.diff(launches.correlation, prepend=launches.correlation[:1])
    found = beat(each, apart)
    if found is None:
        none = np.empty(0, np.int64)
        return Steps(none, none, none), ""
    return inferred_steps(each, found, apart), INFERRED


def _per_step(steps: Steps, step_index: Array, call_of: Array, own: Table) -> tuple[Array, Array]:
    """(end of the last collective, number of collectives) of each step, by the call's step; 0 = none."""
    last, count = np.zeros(len(steps.number), np.int64), np.zeros(len(steps.number), np.int64)
    paired = np.flatnonzero(call_of >= 0)
    index = step_index[call_of[paired]]
    paired, index = paired[index >= 0], index[index >= 0]
    np.maximum.at(last, index, end_ns(own)[paired])
    np.add.at(count, index, 1)
    return last, count


def _skipped(steps: Steps, step_index: Array, call_of: Array) -> Array:
    """Steps whose budget is not known: one of their kernels is not, or the last one of the step before, which is when
    they begin, or the step before itself. `step_index`: of each call."""
    attributed = np.zeros(len(step_index), bool)
    attributed[call_of[call_of >= 0]] = True
    skipped = np.zeros(len(steps.number), bool)
    skipped[step_index[(step_index >= 0) & ~attributed]] = True
    inside = np.flatnonzero(step_index >= 0)
    final = inside[np.flatnonzero(np.diff(step_index[inside], append=-1) != 0)]  # the last call of each step
    after = step_index[final[~attributed[final]]] + 1
    skipped[after[after < len(skipped)]] = True
    apart = np.diff(steps.number)
    if len(apart):
        skipped[1:] |= apart > np.median(apart)
        skipped[0] |= np.argmax(np.append(call_of, 0) >= 0) > 0  # recording began in the middle of the job
    return skipped
