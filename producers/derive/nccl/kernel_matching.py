"""Matching of NCCL kernels with NCCL calls, and hence with communicators and steps.

The k-th NCCL kernel in launch order (correlation id) belongs to the k-th NCCL call by start of its NVTX range. Counts
are believed only when they are equal, operation names agree, no kernel starts before its call, and the steps that are
found by their distances (`resync`) agree. Otherwise the following are tried, in this order:

1. Calls between ncclGroupStart and ncclGroupEnd count as one launch per communicator.
2. Records were lost: each operation class is matched separately, and each step that is whole.

Kernels that still do not match are left out, and their steps marked as skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.intervals import IntervalUnion
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls, grouped, guessed, joined, ordinals
from drumline.producers.derive.nccl.kernels import KnownMatches, NcclKernels
from drumline.producers.derive.nccl.launch_records import calls_of
from drumline.producers.derive.nccl.resync import whole_steps
from drumline.producers.derive.steps.steps import Steps
from drumline.producers.derive.steps.template import (
    StepTemplate,
    bounds,
    find_template,
    is_subsequence,
    keys,
    payloads_filled,
)
from drumline.schemas.columns import Array

#: CUPTI converts GPU time to host time; how far a kernel may seem to start before the call that launched it.
CLOCK_SLACK_NS = 100_000


@dataclass(frozen=True)
class MatchConfidence:
    """Reliability of a match.

    Attributes:
        kernels: number of kernels up to the last one that distances or launches confirm; -1 = nothing confirms any.
        agree: counts do not contradict those.
    """

    kernels: int = -1
    agree: bool = True


UNMATCHED = MatchConfidence()


def match_kernels(
    kernels: NcclKernels, calls: NcclCalls, group: Array, steps: Steps, known: KnownMatches | None = None
) -> tuple[NcclCalls, Array, MatchConfidence]:
    """Match kernels in launch order with calls, which are grouped by `group` where that fits better.

    `known`: for a live process. Where it lost records, kernels behind the last step that is found again stay unmatched:
    they may match when a later step is found.

    Returns the calls (grouped or not), for each kernel the index of its call or -1, and the confidence.
    """
    if len(calls.start_ns) == 0 or len(kernels) == 0:
        return calls, np.full(len(kernels), -1, np.int64), UNMATCHED
    options = [calls] + ([grouped(calls, group)] if group.any() else [])
    equal = [option for option in options if len(option.start_ns) == len(kernels) and _believable(kernels, option)]
    option = equal[0] if equal else options[-1]
    counted = np.arange(len(kernels)) if equal else _by_operation(kernels, option)
    step_index = steps.index_at(option.start_ns)
    template = find_template(option, step_index, steps)
    unknown = np.full(len(kernels), -1, np.int64)
    by_count = counted if known is None or known.counted else unknown
    seen = calls_of(known.launched_at(kernels), option.start_ns, option.end_ns) if known else unknown
    if template is None:
        return option, _joined(by_count, seen), MatchConfidence(_last(seen))
    option = payloads_filled(option, template, step_index)
    if known:
        before = known.calls_of(kernels, option.start_ns)
        before = np.where(before >= 0, before, seen)
        kernels = replace(kernels, known_call=before, began=known.began, counted=known.counted)
    place = whole_steps(kernels, template, CLOCK_SLACK_NS)
    placed, certain, moved = _by_place(option, template, step_index, steps, place)
    certain = _joined(certain, np.where(seen >= 0, moved[seen], -1))
    sure = _last(certain)
    if sure < 0:
        return placed, np.where(by_count >= 0, moved[by_count], -1), UNMATCHED
    counted = np.where(by_count >= 0, moved[by_count], -1)
    both = (counted >= 0) & (certain >= 0)
    merged = np.maximum(counted, certain)
    taken = merged[merged >= 0]
    # As many kernels as calls were lost, so equal counts prove nothing: the steps decide.
    agree = (counted[both] == certain[both]).all() and len(np.unique(taken)) == len(taken)
    return placed, merged if agree else certain, MatchConfidence(sure, bool(agree))


def _joined(pairs: Array, seen: Array) -> Array:
    """Return `pairs` overwritten by `seen`, pairs known from their launch; only `seen` where others contradict it."""
    both = np.where(seen >= 0, seen, pairs)
    taken = both[both >= 0]
    return both if len(np.unique(taken)) == len(taken) else seen


def _last(pairs: Array) -> int:
    """Return the number of kernels up to the last pair; -1 = there are no pairs."""
    at = np.flatnonzero(pairs >= 0)
    return int(at[-1]) + 1 if len(at) else -1


def _by_operation(kernels: NcclKernels, option: NcclCalls) -> Array:
    """Match each operation class separately."""
    wanted = nccl.operation_class(option.operation)
    matched = np.full(len(kernels), -1, np.int64)
    for operation in np.unique(kernels.operation_class):
        of_kind, among = np.flatnonzero(kernels.operation_class == operation), np.flatnonzero(wanted == operation)
        if len(of_kind) == len(among) and _believable(kernels.take(of_kind), option.take(among)):
            matched[of_kind] = among
    return matched


def _by_place(
    option: NcclCalls, template: StepTemplate, step_index: Array, steps: Steps, place: Array
) -> tuple[NcclCalls, Array, Array]:
    """Match the steps of which every kernel is placed.

    Where a step lacks some calls and the others follow the template, the template's calls replace them. Returns the
    calls, for each kernel its call or -1, and for each old call its new index or -1.
    """
    size, key = template.size, keys(option)
    step_ordinal = place // size
    placed_kernels = np.flatnonzero(place >= 0)
    number, placed_count = np.unique(step_ordinal[placed_kernels], return_counts=True)
    complete = set(number[placed_count == size].tolist())
    first, end = bounds(step_index, len(steps.number))
    expected = key[template.index[:size]]
    certain, new = np.full(len(place), -1, np.int64), []
    replaced = np.zeros(len(key), bool)
    total = len(key)
    for step, wanted in enumerate(template.step_ordinal.tolist()):
        if wanted < 0 or wanted not in complete:
            continue
        in_step = slice(int(first[step]), int(end[step]))
        low = int(np.searchsorted(step_ordinal[placed_kernels], wanted))
        at = placed_kernels[low : low + size]
        if np.array_equal(key[in_step], expected):
            certain[at] = np.arange(in_step.start, in_step.stop)
        elif 2 * len(key[in_step]) > size and is_subsequence(key[in_step], expected):
            replaced[in_step] = True
            certain[at] = total + np.arange(size)
            total += size
            new.append(replace(template.calls, start_ns=steps.start_ns[step] + np.arange(size)))
    if not new:
        return option, certain, np.arange(len(key))
    merged, order = joined([option, *new], replaced)
    moved = np.full(total, -1, np.int64)
    moved[order] = np.arange(len(order))
    return merged, np.where(certain >= 0, moved[certain], -1), moved[: len(key)]


def _believable(kernels: NcclKernels, option: NcclCalls) -> bool:
    agrees = (kernels.operation_class == 0) | (kernels.operation_class == nccl.operation_class(option.operation))
    return bool(agrees.all() and (kernels.start_ns >= option.start_ns - CLOCK_SLACK_NS).all())


def as_calls(kernels: NcclKernels) -> NcclCalls:
    """Return the calls that kernels stand for where none were recorded: each before its kernel and all later ones."""
    earliest = np.minimum.accumulate(kernels.start_ns[::-1])[::-1]
    start = earliest - np.arange(len(kernels), 0, -1)
    return guessed(start, kernels.operation_class, start)


def by_stream(called: NcclCalls, call_of: Array, kernels: Table) -> NcclCalls:
    """Return the calls; guessed communicators also get the stream (u4) that their kernel ran on."""
    if not nccl.is_guess(called.communicator).any():
        return called
    communicator, paired = called.communicator.copy(), np.flatnonzero(call_of >= 0)
    communicator[call_of[paired]] = nccl.guess(kernels["stream"][paired], called.operation[call_of[paired]])
    return replace(called, communicator=np.where(nccl.is_guess(called.communicator), communicator, called.communicator))


def table(
    kernels: Table, called: NcclCalls, call_of: Array, call_step: Array, busy: IntervalUnion
) -> tuple[Table, int]:
    """Return rows of gpu.collective.v1 in launch order, and the number of kernels left out.

    `communicator` is a u8 hash; `call_ns`: when the host called it.

    `kernels`: the NCCL kernels in launch order; `call_of` from match_kernels(); `call_step`: step of each call, -1 =
    none; `busy`: when kernels outside NCCL, or copies, ran.
    """
    keep = np.flatnonzero(call_of >= 0)
    keep = keep[_communicator_known(called, call_step)[call_of[keep]]]
    call = call_of[keep]
    start, end = kernels["start_ns"][keep], end_ns(kernels)[keep]
    columns = {
        "communicator": called.communicator[call],
        "operation": called.operation[call],
        "bytes": called.bytes[call],
        "step": call_step[call],
        "ordinal": ordinals(called.communicator, call_step)[call],  # a call without a kernel leaves a gap
        "start_ns": start,
        "duration_ns": end - start,
        "covered_ns": busy.covered(start, end),
        "call_ns": called.start_ns[call],
    }
    return Table(columns, {"operations": nccl.OPERATIONS}), len(call_of) - len(keep)


def _communicator_known(called: NcclCalls, call_step: Array) -> Array:
    """Return which calls have a known communicator and, in their step, no unknown call of their operation class."""
    kind = call_step * len(nccl.OPERATIONS) + nccl.operation_class(called.operation)
    uncertain = kind[~called.communicator_known & (call_step >= 0)]
    result: Array = called.communicator_known & ~np.isin(kind, uncertain)
    return result
