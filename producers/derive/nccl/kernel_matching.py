"""Collectives: which NCCL kernel belongs to which NCCL call, hence to which communicator and step.

The k-th NCCL kernel in launch order (correlation id) is the k-th NCCL call by start of its NVTX range. It is only
believed when counts are equal, operation names agree, no kernel starts before its call, and the steps that can be told
by themselves (producers/resync.py) say the same. Where that fails, calls between ncclGroupStart and ncclGroupEnd are
taken as one launch per communicator; where that fails too, records were lost: each kind of operation is matched on its
own, and each step that is whole. What still does not match is attributed to nobody, and its steps marked as skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.intervals import Union
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls, grouped, guessed, joined
from drumline.producers.derive.nccl.kernels import Launches, Told
from drumline.producers.derive.nccl.launch_records import calls_of
from drumline.producers.derive.nccl.resync import whole_steps
from drumline.producers.derive.steps.steps import Steps
from drumline.producers.derive.steps.template import Usual, bounds, is_part, keys, payloads_filled, usual_step
from drumline.schemas.columns import Array

#: CUPTI converts GPU time to host time; how far a kernel may seem to start before the call that launched it.
CLOCK_SLACK_NS = 100_000


@dataclass(frozen=True)
class Sure:
    """`launches`: up to how many kernels pairs were found again by distances; -1 = distances tell nothing. `agree`:
    counts say nothing else."""

    launches: int = -1
    agree: bool = True


UNSURE = Sure()


def pair(
    launches: Launches, each: Calls, group: Array, steps: Steps, told: Told | None = None
) -> tuple[Calls, Array, Sure]:
    """The calls (grouped or not); for each NCCL kernel in launch order, the index of its call or -1; how sure that is.
    `told`: of a live process. Where records were lost in it, what follows the last step that is found again is not
    paired: it may be when another one is found behind it."""
    if len(each.start_ns) == 0 or len(launches) == 0:
        return each, np.full(len(launches), -1, np.int64), UNSURE
    options = [each] + ([grouped(each, group)] if group.any() else [])
    equal = [one for one in options if len(one.start_ns) == len(launches) and _believable(launches, one)]
    option = equal[0] if equal else options[-1]
    counted = np.arange(len(launches)) if equal else _by_operation(launches, option)
    step_index = steps.index_at(option.start_ns)
    usual = usual_step(option, step_index, steps)
    unknown = np.full(len(launches), -1, np.int64)
    alone = counted if told is None or told.counted else unknown
    seen = calls_of(told.launched_at(launches), option.start_ns, option.end_ns) if told else unknown
    if usual is None:
        return option, _joined(alone, seen), Sure(_last(seen))
    option = payloads_filled(option, usual, step_index)
    if told:
        before = told.calls_of(launches, option.start_ns)
        before = np.where(before >= 0, before, seen)
        launches = replace(launches, told=before, began=told.began, counted=told.counted)
    place = whole_steps(launches, usual, CLOCK_SLACK_NS)
    placed, certain, moved = _by_place(option, usual, step_index, steps, place)
    certain = _joined(certain, np.where(seen >= 0, moved[seen], -1))
    sure = _last(certain)
    if sure < 0:
        return placed, np.where(alone >= 0, moved[alone], -1), UNSURE
    counted = np.where(alone >= 0, moved[alone], -1)
    both = (counted >= 0) & (certain >= 0)
    merged = np.maximum(counted, certain)
    taken = merged[merged >= 0]
    # As many kernels lost as calls, and counts say nothing: the steps do.
    agree = (counted[both] == certain[both]).all() and len(np.unique(taken)) == len(taken)
    return placed, merged if agree else certain, Sure(sure, bool(agree))


def _joined(pairs: Array, seen: Array) -> Array:
    """Pairs, and those that were `seen` at their launch; these alone where the others contradict them."""
    both = np.where(seen >= 0, seen, pairs)
    taken = both[both >= 0]
    return both if len(np.unique(taken)) == len(taken) else seen


def _last(pairs: Array) -> int:
    """Up to how many kernels there are pairs; -1 = there are none."""
    at = np.flatnonzero(pairs >= 0)
    return int(at[-1]) + 1 if len(at) else -1


def _by_operation(launches: Launches, option: Calls) -> Array:
    """Each kind of operation matched on its own."""
    wanted = nccl.kernel_class(option.operation)
    found = np.full(len(launches), -1, np.int64)
    for one in np.unique(launches.klass):
        kernels, among = np.flatnonzero(launches.klass == one), np.flatnonzero(wanted == one)
        if len(kernels) == len(among) and _believable(launches.take(kernels), option.take(among)):
            found[kernels] = among
    return found


def _by_place(option: Calls, usual: Usual, step_index: Array, steps: Steps, place: Array) -> tuple[Calls, Array, Array]:
    """(calls, for each kernel its call or -1, for each old call its new index or -1).

    Steps of which every kernel is placed. Where some of a step's calls are missing and the others are as usual, the
    step's calls become the usual ones."""
    size, key = usual.size, keys(option)
    turn = place // size
    there = np.flatnonzero(place >= 0)
    number, kernels = np.unique(turn[there], return_counts=True)
    complete = set(number[kernels == size].tolist())
    first, end = bounds(step_index, len(steps.number))
    template = key[usual.index[:size]]
    certain, new = np.full(len(place), -1, np.int64), []
    gone = np.zeros(len(key), bool)
    total = len(key)
    for step, wanted in enumerate(usual.turn.tolist()):
        if wanted < 0 or wanted not in complete:
            continue
        mine = slice(int(first[step]), int(end[step]))
        low = int(np.searchsorted(turn[there], wanted))
        at = there[low : low + size]
        if np.array_equal(key[mine], template):
            certain[at] = np.arange(mine.start, mine.stop)
        elif 2 * len(key[mine]) > size and is_part(key[mine], template):
            gone[mine] = True
            certain[at] = total + np.arange(size)
            total += size
            new.append(replace(usual.template, start_ns=steps.start_ns[step] + np.arange(size)))
    if not new:
        return option, certain, np.arange(len(key))
    every, order = joined([option, *new], gone)
    moved = np.full(total, -1, np.int64)
    moved[order] = np.arange(len(order))
    return every, np.where(certain >= 0, moved[certain], -1), moved[: len(key)]


def _believable(launches: Launches, option: Calls) -> bool:
    agrees = (launches.klass == 0) | (launches.klass == nccl.kernel_class(option.operation))
    return bool(agrees.all() and (launches.start_ns >= option.start_ns - CLOCK_SLACK_NS).all())


def as_calls(launches: Launches) -> Calls:
    """Launches as calls that nobody saw: made in their order, each before it and all later ones started."""
    earliest = np.minimum.accumulate(launches.start_ns[::-1])[::-1]
    start = earliest - np.arange(len(launches), 0, -1)
    return guessed(start, launches.klass, start)


def by_stream(called: Calls, call_of: Array, kernels: Table) -> Calls:
    """The calls, those with a guessed communicator by the stream (u4) that their kernel ran on as well."""
    if not nccl.is_guess(called.communicator).any():
        return called
    communicator, paired = called.communicator.copy(), np.flatnonzero(call_of >= 0)
    communicator[call_of[paired]] = nccl.guess(kernels["stream"][paired], called.operation[call_of[paired]])
    return replace(called, communicator=np.where(nccl.is_guess(called.communicator), communicator, called.communicator))


def table(kernels: Table, called: Calls, call_of: Array, call_step: Array, busy: Union) -> tuple[Table, int]:
    """(rows of gpu.collective.v1 with their `communicator` as u8 hash, in launch order; how many were left out).

    `kernels`: the NCCL kernels in launch order; `call_of` from pair(); `call_step`: step of each call, -1 = none;
    `busy`: when kernels that are not NCCL's, or copies, ran.
    """
    keep = np.flatnonzero(call_of >= 0)
    keep = keep[_told(called, call_step)[call_of[keep]]]
    call = call_of[keep]
    start, end = kernels["start_ns"][keep], end_ns(kernels)[keep]
    columns = {
        "communicator": called.communicator[call],
        "operation": called.operation[call],
        "bytes": called.bytes[call],
        "step": call_step[call],
        "ordinal": _ordinals(called, call_step)[call],
        "start_ns": start,
        "duration_ns": end - start,
        "covered_ns": busy.covered(start, end),
    }
    return Table(columns, {"operations": nccl.OPERATIONS}), len(call_of) - len(keep)


def _told(called: Calls, call_step: Array) -> Array:
    """Calls whose communicator is known, and of whose kind no other one in their step could be of it too: bool."""
    kind = call_step * len(nccl.OPERATIONS) + nccl.kernel_class(called.operation)
    doubtful = kind[~called.known & (call_step >= 0)]
    told: Array = called.known & ~np.isin(kind, doubtful)
    return told


def _ordinals(called: Calls, call_step: Array) -> Array:
    """0, 1, 2, ... per (communicator, step) over the calls, whether their kernels are known or not: a hole says so."""
    order = np.lexsort((np.arange(len(call_step)), call_step, called.communicator))
    communicator, step = called.communicator[order], call_step[order]
    ordinal = np.zeros(len(order), np.int32)
    if len(order):
        new = np.concatenate([[True], (np.diff(step) != 0) | (communicator[1:] != communicator[:-1])])
        ordinal[order] = np.arange(len(order)) - np.flatnonzero(new)[np.cumsum(new) - 1]
    return ordinal
