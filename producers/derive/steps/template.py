"""The usual step: the sequence of NCCL calls that most steps of a process make, and which steps make just that."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls
from drumline.producers.derive.steps.steps import Steps
from drumline.schemas.columns import Array

#: A sequence is usual if so many steps have it.
MIN_STEPS = 5


@dataclass(frozen=True)
class Usual:
    """`template` [size]: the calls of one usual step. Of the calls that lie in whole usual steps, by start: `index`
    (among all), `place` (turn * size + position), `start_ns`. `turn` [steps]: number of each step, counted by ones;
    -1 = it does not fit into the counting. `calls`: how many there are in all. `apart_ns` [size]: host time from each
    call to the next, the last one's to the next step; NaN = never seen."""

    template: Calls
    index: Array
    place: Array
    start_ns: Array
    turn: Array
    calls: int
    apart_ns: Array

    @property
    def size(self) -> int:
        return len(self.template.start_ns)

    @property
    def whole(self) -> int:
        """How many steps are whole and usual."""
        return len(self.index) // self.size if self.size else 0

    @property
    def klass(self) -> Array:
        """What kernels of these calls are called after: operation codes."""
        return nccl.kernel_class(self.template.operation)


def keys(each: Calls) -> Array:
    """One number for equal (operation, communicator, bytes), -1 where the payload is missing: int64."""
    rows = np.stack([each.operation.astype(np.uint64), each.communicator, each.bytes], axis=1)
    number = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return np.where(each.known, number, -1)


def bounds(step_index: Array, steps: int) -> tuple[Array, Array]:
    """(first, end) of each step's calls among all calls; calls are by start, so a step's lie side by side."""
    inside = np.flatnonzero(step_index >= 0)
    first = np.searchsorted(step_index[inside], np.arange(steps))
    end = np.searchsorted(step_index[inside], np.arange(steps), side="right")
    where = np.append(inside, len(step_index))
    return where[first], where[np.maximum(end - 1, 0)] + (end > first)


def usual_step(each: Calls, step_index: Array, steps: Steps) -> Usual | None:
    """None if fewer than MIN_STEPS steps make the same calls. `step_index`: of each call, -1 = none."""
    key = keys(each)
    first, end = bounds(step_index, len(steps.number))
    made = [key[a:b].tobytes() for a, b in zip(first.tolist(), end.tolist(), strict=True)]
    whole = Counter(
        text for text, a, b in zip(made, first.tolist(), end.tolist(), strict=True) if (key[a:b] >= 0).all()
    )
    whole.pop(b"", None)
    if not whole or max(whole.values()) < MIN_STEPS:
        return None
    chosen = max(whole, key=lambda text: (whole[text], len(text), text))
    size = len(chosen) // key.itemsize
    turn = turns(steps.number)
    have = np.array([text == chosen for text in made]) & (turn >= 0)
    if have.sum() < MIN_STEPS:
        return None
    begin = first[have]
    index = (begin[:, None] + np.arange(size)).ravel()
    place = (turn[have][:, None] * size + np.arange(size)).ravel()
    start = each.start_ns[index]
    apart = np.diff(start, append=0).astype(np.float64)
    apart[np.append(np.diff(place) != 1, True)] = np.nan
    seen = apart.reshape(-1, size)
    middle = np.array([np.median(c[np.isfinite(c)]) if np.isfinite(c).any() else np.nan for c in seen.T])
    return Usual(each.take(index[:size]), index, place, start, turn, len(key), middle)


def turns(number: Array) -> Array:
    """Step numbers counted by ones, whatever they count by; -1 where one does not fit."""
    rise = np.diff(number)
    if len(rise) == 0:
        return np.zeros(len(number), np.int64)
    by = Counter(rise.tolist()).most_common(1)[0][0]
    past = number - number[0]
    return np.where(past % by == 0, past // by, -1)


def payloads_filled(each: Calls, usual: Usual, step_index: Array) -> Calls:
    """Calls whose payload is missing, taken from the usual step where all the rest of their step is as usual."""
    lacking = np.unique(step_index[~each.known & (step_index >= 0)])
    if len(lacking) == 0:
        return each
    names = ("communicator", "bytes", "known")
    fields = {name: getattr(each, name).copy() for name in names}
    first, end = bounds(step_index, len(usual.turn))
    template = usual.template
    for step in lacking.tolist():
        mine = slice(int(first[step]), int(end[step]))
        known = each.known[mine]
        if len(known) != usual.size or 2 * known.sum() <= usual.size:
            continue
        same = (each.communicator[mine] == template.communicator) & (each.bytes[mine] == template.bytes)
        if (same | ~known).all() and (each.operation[mine] == template.operation).all():
            for name, values in fields.items():
                values[mine] = getattr(template, name)
    return replace(each, **fields)


def is_part(some: Array, whole: Array) -> bool:
    """Can `some` be made from `whole` by leaving values out? -1 in `some` stands for any value."""
    rest = iter(whole.tolist())
    return all(any(value in (-1, other) for other in rest) for value in some.tolist())
