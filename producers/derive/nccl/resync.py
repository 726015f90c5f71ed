"""Matching of NCCL kernels with calls where records were lost: whole steps are found again, the rest is left out.

A training step makes the same calls every time and, between two of its NCCL launches, as many other CUDA calls. So
CUPTI's correlation ids, which count CUDA calls, pass through it in the same distances whatever was recorded. Windows of
kernels with these distances are numbered on the kernels' side, steps on the calls' side; one integer offset
(`alignment`) assigns windows to steps.

Kernels between two windows are matched in order if nothing is missing there. All times are int64 ns.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.derive.nccl.alignment import KernelWindows, align
from drumline.producers.derive.nccl.kernels import NcclKernels
from drumline.producers.derive.steps.template import StepTemplate
from drumline.schemas.columns import Array

#: Windows that a pattern of distances needs to count as a step's.
MIN_WINDOWS = 5
#: Steps between two windows are counted by their kernels if at least this part of those is left.
MOST_LEFT = 0.75
_FAR = np.iinfo(np.int64).max


def whole_steps(kernels: NcclKernels, template: StepTemplate, slack_ns: int) -> Array:
    """Return for each kernel its place: step_ordinal * size + position in the step template; -1 = unknown.

    Ordinals are those of `template.step_ordinal`. `slack_ns`: how far a kernel may seem to start before its call.
    """
    place = np.full(len(kernels), -1, np.int64)
    if template.size >= 2 and len(template.step_ordinal) >= MIN_WINDOWS:
        _search(kernels, template, slack_ns, 0, len(kernels), place)
        _fill(kernels, template, slack_ns, place)
    return place


def _search(kernels: NcclKernels, template: StepTemplate, slack_ns: int, low: int, high: int, place: Array) -> None:
    """Place the windows among kernels low..high, then search between them: another phase of the job has other
    distances.
    """
    size = template.size
    aligned = _aligned(kernels, template, slack_ns, _chains(kernels, size, low, high))
    begins = Counter(offset % size for _, offset in aligned).most_common(1)
    if begins and begins[0][0]:  # windows that begin where steps do: a lost record then costs one step, not two
        ahead = size - begins[0][0]
        first = np.concatenate([windows.first + ahead for windows, _ in aligned])
        aligned = _aligned(kernels, template, slack_ns, _chains(kernels, size, low, high, first), 0) or aligned
    for windows, offset in aligned:
        index = (windows.first[:, None] + np.arange(size)).ravel()
        value = (windows.step_ordinal[:, None] * size + np.arange(size)).ravel() + offset
        index, value = index[value >= 0], value[value >= 0]  # warm-up comes before the first step
        if len(index) == 0:
            continue
        before, after = place[: index[0]], place[index[-1] :]
        if before.max(initial=-1) < value[0] and after[after >= 0].min(initial=_FAR) > value[-1]:
            place[index] = value
    if not (place[low:high] >= 0).any():
        return
    free = np.flatnonzero(np.diff(np.concatenate([[0], place[low:high] < 0, [0]]).astype(np.int8))) + low
    for a, b in zip(free[::2].tolist(), free[1::2].tolist(), strict=True):
        if b - a >= MIN_WINDOWS * size:
            _search(kernels, template, slack_ns, a, b, place)


def _aligned(
    kernels: NcclKernels, template: StepTemplate, slack_ns: int, chains: list[KernelWindows], phase: int | None = None
) -> list[tuple[KernelWindows, int]]:
    both = ((windows, align(kernels, template, windows, slack_ns, phase)) for windows in chains)
    return [(windows, offset) for windows, offset in both if offset is not None]


def _chains(kernels: NcclKernels, size: int, low: int, high: int, begins: Array | None = None) -> list[KernelWindows]:
    """Return windows with the most common distances (of those at `begins`).

    There are as many chains as there are gaps of unknown length between windows.
    """
    if high - low < MIN_WINDOWS * size:
        return []
    step = np.diff(kernels.correlation[low:high])
    candidates = np.lib.stride_tricks.sliding_window_view(step, size - 1)
    chosen = (
        candidates if begins is None else candidates[begins[(begins >= low) & (begins - low < len(candidates))] - low]
    )
    common = Counter(map(bytes, np.ascontiguousarray(chosen))).most_common(1)
    if not common or common[0][1] < MIN_WINDOWS:
        return []
    distances = np.frombuffer(common[0][0], step.dtype)
    first = np.flatnonzero((candidates == distances).all(1)) + low
    if (np.diff(first) < size).any():
        return []  # distances that repeat within a step are ambiguous
    between = np.diff(first) - size
    id_gap = kernels.correlation[first[1:]] - kernels.correlation[first[:-1] + size - 1]
    least = int(id_gap[between == 0].min()) if (between == 0).any() else 1
    fewest = -(-between // size)
    most = (id_gap - least) // (int(distances.sum()) + least)
    missing = fewest * size - between  # half a step or more: rather calls outside steps, and fewer steps
    sure = (fewest == most) & (missing <= (1 - MOST_LEFT) * fewest * size) & (2 * missing < size)
    step_ordinal = np.concatenate([[0], np.cumsum(fewest + 1)])
    parts = np.split(np.arange(len(first)), np.flatnonzero(~sure) + 1)
    return [KernelWindows(first[p], step_ordinal[p] - step_ordinal[p[0]], distances) for p in parts]


def _fill(kernels: NcclKernels, template: StepTemplate, slack_ns: int, place: Array) -> None:
    """Match in order the steps between two windows, if nothing is missing there.

    That is: as many kernels as places, as many calls, no late call, and distances that occur in more than one step (a
    lost record leaves unique ones).
    """
    size, placed = template.size, np.flatnonzero(place >= 0)
    call = np.full(int(max(place.max(initial=-1), template.place.max())) + 2, -1, np.int64)
    call[template.place] = template.index
    gap = np.flatnonzero(np.diff(placed) > size)
    starts = []
    for a, b in zip(placed[gap].tolist(), placed[gap + 1].tolist(), strict=True):
        count, first, last = b - a, call[place[a]], call[place[b]]
        if place[b] - place[a] == count and first >= 0 and last - first == count and (place[a] + 1) % size == 0:
            starts += [(k, int(place[a]) + k - a) for k in range(a + 1, b - size + 1, size)]
    distances = [np.diff(kernels.correlation[k : k + size]).tobytes() for k, _ in starts]
    seen = Counter(distances)
    for (kernel, first), pattern in zip(starts, distances, strict=True):
        at, wanted = np.arange(kernel, kernel + size), np.arange(first, first + size)
        known = np.searchsorted(template.place, wanted)
        operation_class = kernels.operation_class[at]
        if (
            seen[pattern] < 2
            or (template.place[known] != wanted).any()
            or not ((operation_class == 0) | (operation_class == template.operation_class)).all()
        ):
            continue
        if (kernels.start_ns[at] >= template.start_ns[known] - slack_ns).all():
            place[at] = wanted
