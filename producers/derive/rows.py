"""Rows of every topic, derived from the activity of one process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import Activity, end_ns
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_matching as matching
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls, grouped, groups, nccl_calls, until_launched
from drumline.producers.derive.nccl.kernels import KnownMatches, NcclKernels
from drumline.producers.derive.nvtx import ranges as nested_ranges
from drumline.producers.derive.steps.budget import (
    StepInputs,
    budgets,
    gpu_busy,
    input_time,
    pageable,
    unknown_budgets,
)
from drumline.producers.derive.steps.host_columns import marked_sums
from drumline.producers.derive.steps.inferred_steps import find_period, inferred_steps
from drumline.producers.derive.steps.steps import INFERRED, STEP_PATTERN, Steps, marked_steps
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic


@dataclass(frozen=True)
class DerivedCounts:
    """Counts of rows that could not be derived or read."""

    unattributed_collectives: int = 0
    skipped_steps: int = 0
    unfinished_ranges: int = 0


@dataclass(frozen=True)
class Derived:
    """Rows of one process, columns as in the schemas.

    Attributes:
        collectives: with columns `communicator` (u8 hash) and `call_ns` (of the host) too.
        steps_from: source of the steps, see derive.steps.
        matches: pairs of kernels and calls, for the next segment of a live process.
        confidence: see kernel_matching.match_kernels().
    """

    kernels: Table
    copies: Table
    collectives: Table
    steps: Table
    ranges: Table
    samples: Table
    counts: DerivedCounts
    invalid: dict[Topic, int]
    steps_from: str = ""
    matches: KnownMatches | None = None
    confidence: matching.MatchConfidence = matching.UNMATCHED


def derive(
    activity: Activity,
    pattern: str = STEP_PATTERN,
    since_ns: int = 0,
    known: KnownMatches | None = None,
    sampled: bool = False,
    matched: bool = True,
) -> Derived:
    """Derive ranges, steps, collectives and budgets of a process.

    Missing activity (no NVTX, no NCCL, no copies) gives empty tables. `pattern`, `since_ns`: see host_steps(). `known`:
    matches of a live process that are known already. `sampled`: only some steps were recorded, each run of them from
    the begin of its first step on, as a profiler with a schedule does. `matched`: False where another source has the
    collectives; then no call of NCCL is matched with kernels, and steps are those that are marked.
    """
    kernels = activity.kernels
    ranges, unfinished = nested_ranges(activity.markers)
    communication = nccl.is_kernel(kernels.dictionaries["names"])
    is_nccl = communication[kernels["name"]] if kernels.rows else np.zeros(0, bool)
    gpu = gpu_busy(kernels, is_nccl, activity.copies)
    nccl_kernels = _in_launch_order(kernels, is_nccl & matched)
    matchable = _matchable(nccl_kernels)
    calls = nccl_calls(ranges, activity.payloads)
    calls = calls if matched else calls.take(slice(0))
    steps, source = marked_steps(ranges, pattern, since_ns)
    if len(calls.start_ns) == 0 and nccl_kernels.rows:  # NCCL without NVTX: kernels stand for calls
        calls = matching.as_calls(matchable)
        steps, source = inferred(matchable, calls)
    elif not source and len(calls.start_ns):
        steps, source = inferred(matchable, grouped(calls, groups(ranges, calls.start_ns, steps.start_ns)))
    ranges = Table({**ranges.columns, "step": steps.number_at(ranges["start_ns"])}, ranges.dictionaries)

    group = groups(ranges, calls.start_ns, steps.start_ns)
    calls = until_launched(calls, group, ranges)
    called, call_of, confidence = matching.match_kernels(matchable, calls, group, steps, known)
    paired = call_of >= 0
    pairs = KnownMatches(matchable.correlation[paired], called.start_ns[call_of[paired]])
    called = matching.by_stream(called, call_of, nccl_kernels)
    step_index = steps.index_at(called.start_ns)
    call_step = np.where(step_index >= 0, steps.number[step_index], -1) if len(steps.number) else step_index
    rows, left_out = matching.table(nccl_kernels, called, call_of, call_step, gpu.compute_or_copy)

    last, count = _per_step(steps, step_index, call_of, nccl_kernels)
    skipped = unknown_budgets(steps, step_index, call_of, sampled)
    inputs = StepInputs(
        last_collective_ns=last,
        collectives=count,
        skipped=skipped,
        kernels=kernels,
        is_nccl=is_nccl,
        gpu=gpu,
        pageable=pageable(activity.copies),
        input_ranges=input_time(ranges),
        host=marked_sums(activity.markers, steps),
        sampled=sampled,
    )
    return Derived(
        kernels=kernels,
        copies=activity.copies,
        collectives=rows,
        steps=budgets(steps, inputs),
        ranges=ranges,
        samples=activity.samples,
        counts=DerivedCounts(left_out, int(skipped.sum()), unfinished),
        invalid=activity.invalid,
        steps_from=source,
        matches=pairs,
        confidence=confidence,
    )


def inferred(matchable: NcclKernels, calls: NcclCalls) -> tuple[Steps, str]:
    """Return steps inferred from the calls and INFERRED, or no steps and "" where the calls have no period."""
    id_gaps = None
    if len(matchable) == len(calls.start_ns):
        id_gaps = np.diff(matchable.correlation, prepend=matchable.correlation[:1])
    period = find_period(calls, id_gaps)
    if period is None:
        none = np.empty(0, np.int64)
        return Steps(none, none, none), ""
    return inferred_steps(calls, period, id_gaps), INFERRED


def _in_launch_order(kernels: Table, is_nccl: Array) -> Table:
    """Return the NCCL kernels by launch, without those of CUDA graphs: their calls were made at the graph's capture."""
    launched = np.flatnonzero(is_nccl & (kernels["graph"] == 0))
    return kernels.take(launched[np.lexsort((kernels["start_ns"][launched], kernels["correlation"][launched]))])


def _matchable(nccl_kernels: Table) -> NcclKernels:
    operations = nccl.kernel_operations(nccl_kernels.dictionaries["names"])
    return NcclKernels(
        operations[nccl_kernels["name"]] if nccl_kernels.rows else np.zeros(0, np.uint8),
        nccl_kernels["correlation"].astype(np.int64),
        nccl_kernels["start_ns"],
    )


def _per_step(steps: Steps, step_index: Array, call_of: Array, nccl_kernels: Table) -> tuple[Array, Array]:
    """Return each step's end of the last collective (0 = none) and number of collectives; a kernel counts in its call's
    step.
    """
    last, count = np.zeros(len(steps.number), np.int64), np.zeros(len(steps.number), np.int64)
    paired = np.flatnonzero(call_of >= 0)
    index = step_index[call_of[paired]]
    paired, index = paired[index >= 0], index[index >= 0]
    np.maximum.at(last, index, end_ns(nccl_kernels)[paired])
    np.add.at(count, index, 1)
    return last, count
