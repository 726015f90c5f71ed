"""The step template: the sequence of NCCL calls that most steps of a process make, and the steps that follow it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: Steps that a template needs at least.
MIN_STEPS = 5


@dataclass(frozen=True)
class StepTemplate:
    """Calls of a typical step, and the recorded calls that lie in steps which follow it.

    Attributes:
        calls: [size], calls of one such step.
        index: of the calls in steps that follow the template, by start: position among all calls.
        place: of these, step_ordinal * size + position in the step.
        start_ns: of these.
        step_ordinal: [steps], number of each step counted by ones; -1 = it does not fit into the counting.
        call_count: number of all calls.
        gap_ns: [size], median host time from each call to the next, the last one's to the next step; NaN = unknown.
    """

    calls: NcclCalls
    index: Array
    place: Array
    start_ns: Array
    step_ordinal: Array
    call_count: int
    gap_ns: Array

    @property
    def size(self) -> int:
        """Return the number of calls in a step."""
        return len(self.calls.start_ns)

    @property
    def whole(self) -> int:
        """Return the number of steps that follow the template."""
        return len(self.index) // self.size if self.size else 0

    @property
    def operation_class(self) -> Array:
        """Return the operation class of each call's kernel."""
        return nccl.operation_class(self.calls.operation)


def keys(calls: NcclCalls) -> Array:
    """Return one number for equal (operation, communicator, bytes), -1 where the payload is missing: int64."""
    rows = np.stack([calls.operation.astype(np.uint64), calls.communicator, calls.bytes], axis=1)
    number = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where(calls.communicator_known, number, -1)


def bounds(step_index: Array, steps: int) -> tuple[Array, Array]:
    """Return (first, end) of each step's calls among all calls; calls are by start, so a step's are contiguous."""
    inside = np.flatnonzero(step_index >= 0)
    first = np.searchsorted(step_index[inside], np.arange(steps))
    end = np.searchsorted(step_index[inside], np.arange(steps), side="right")
    where = np.append(inside, len(step_index))
    return where[first], where[np.maximum(end - 1, 0)] + (end > first)


def find_template(calls: NcclCalls, step_index: Array, steps: Steps) -> StepTemplate | None:
    """Return the template; None if fewer than MIN_STEPS steps make the same calls. `step_index`: of each call, -1 =
    none.
    """
    key = keys(calls)
    first, end = bounds(step_index, len(steps.number))
    sequences = [key[a:b].tobytes() for a, b in zip(first.tolist(), end.tolist(), strict=True)]
    whole = Counter(
        sequence
        for sequence, a, b in zip(sequences, first.tolist(), end.tolist(), strict=True)
        if (key[a:b] >= 0).all()
    )
    whole.pop(b"", None)
    if not whole or max(whole.values()) < MIN_STEPS:
        return None
    chosen = max(whole, key=lambda sequence: (whole[sequence], len(sequence), sequence))
    size = len(chosen) // key.itemsize
    ordinal = step_ordinals(steps.number)
    follows = np.array([sequence == chosen for sequence in sequences]) & (ordinal >= 0)
    if follows.sum() < MIN_STEPS:
        return None
    begin = first[follows]
    index = (begin[:, None] + np.arange(size)).ravel()
    place = (ordinal[follows][:, None] * size + np.arange(size)).ravel()
    start = calls.start_ns[index]
    gap = np.diff(start, append=0).astype(np.float64)
    gap[np.append(np.diff(place) != 1, True)] = np.nan
    gaps = gap.reshape(-1, size)
    median_gap = np.array([np.median(c[np.isfinite(c)]) if np.isfinite(c).any() else np.nan for c in gaps.T])
    return StepTemplate(calls.take(index[:size]), index, place, start, ordinal, len(key), median_gap)


def step_ordinals(number: Array) -> Array:
    """Return step numbers counted by ones, whatever they count by; -1 where one does not fit."""
    rise = np.diff(number)
    if len(rise) == 0:
        return np.zeros(len(number), np.int64)
    by = Counter(rise.tolist()).most_common(1)[0][0]
    since_first = number - number[0]
    return np.where(since_first % by == 0, since_first // by, -1)


def payloads_filled(calls: NcclCalls, template: StepTemplate, step_index: Array) -> NcclCalls:
    """Return the calls with missing payloads taken from the template, in steps whose other calls all follow it."""
    incomplete = np.unique(step_index[~calls.communicator_known & (step_index >= 0)])
    if len(incomplete) == 0:
        return calls
    names = ("communicator", "bytes", "communicator_known")
    fields = {name: getattr(calls, name).copy() for name in names}
    first, end = bounds(step_index, len(template.step_ordinal))
    expected = template.calls
    for step in incomplete.tolist():
        in_step = slice(int(first[step]), int(end[step]))
        known = calls.communicator_known[in_step]
        if len(known) != template.size or 2 * known.sum() <= template.size:
            continue
        same = (calls.communicator[in_step] == expected.communicator) & (calls.bytes[in_step] == expected.bytes)
        if (same | ~known).all() and (calls.operation[in_step] == expected.operation).all():
            for name, values in fields.items():
                values[in_step] = getattr(expected, name)
    return replace(calls, **fields)


def is_subsequence(part: Array, whole: Array) -> bool:
    """Return whether removing values from `whole` can give `part`; -1 in `part` stands for any value."""
    rest = iter(whole.tolist())
    return all(any(value in (-1, other) for other in rest) for value in part.tolist())
