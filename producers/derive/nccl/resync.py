"""Which NCCL kernel belongs to which call where records were lost: whole steps are found again, the rest is left out.

A training step makes the same calls every time and, between two of its NCCL launches, as many other CUDA calls: CUPTI's
correlation ids, which count CUDA calls, step through it in the same distances whatever was recorded. Windows of kernels
with these distances are counted off on the kernels' side, steps by their numbers on the calls' side; one integer, the
*shift*, says which window is which step (shift.py).

What lies between two windows is paired in order if nothing is missing there. Pure; all times int64 ns.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from drumline.producers.derive.nccl.alignment import Windows, shift_of
from drumline.producers.derive.nccl.kernels import Launches
from drumline.producers.derive.steps.template import Usual
from drumline.schemas.columns import Array

#: A pattern of distances counts as the job's own from so many windows on.
MIN_WINDOWS = 5
#: Steps between two windows are counted by their kernels if at least this part of those is left.
MOST_LEFT = 0.75
_FAR = np.iinfo(np.int64).max


def whole_steps(launches: Launches, usual: Usual, slack_ns: int) -> Array:
    """For each kernel its place: turn * size + position in the usual step, turns as `usual.turn` counts them; -1 =
    cannot be told."""
    place = np.full(len(launches), -1, np.int64)
    if usual.size >= 2 and len(usual.turn) >= MIN_WINDOWS:
        _search(launches, usual, slack_ns, 0, len(launches), place)
        _fill(launches, usual, slack_ns, place)
    return place


def _search(launches: Launches, usual: Usual, slack_ns: int, low: int, high: int, place: Array) -> None:
    """Place the windows among kernels low..high, then look at what lies between them (other distances: another phase of
    the job)."""
    size = usual.size
    shifted = _shifted(launches, usual, slack_ns, _chains(launches, size, low, high))
    begins = Counter(shift % size for _, shift in shifted).most_common(1)
    if begins and begins[0][0]:  # windows that begin where steps do: a lost record then costs one step, not two
        ahead = size - begins[0][0]
        first = np.concatenate([windows.first + ahead for windows, _ in shifted])
        shifted = _shifted(launches, usual, slack_ns, _chains(launches, size, low, high, first), 0) or shifted
    for windows, shift in shifted:
        index = (windows.first[:, None] + np.arange(size)).ravel()
        value = (windows.turn[:, None] * size + np.arange(size)).ravel() + shift
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
            _search(launches, usual, slack_ns, a, b, place)


def _shifted(
    launches: Launches, usual: Usual, slack_ns: int, chains: list[Windows], phase: int | None = None
) -> list[tuple[Windows, int]]:
    both = ((windows, shift_of(launches, usual, windows, slack_ns, phase)) for windows in chains)
    return [(windows, shift) for windows, shift in both if shift is not None]


def _chains(launches: Launches, size: int, low: int, high: int, begins: Array | None = None) -> list[Windows]:
    """Windows of the commonest distances (of those at `begins`), as many chains as there are gaps of unknown length
    between them."""
    if high - low < MIN_WINDOWS * size:
        return []
    step = np.diff(launches.correlation[low:high])
    every = np.lib.stride_tricks.sliding_window_view(step, size - 1)
    some = every if begins is None else every[begins[(begins >= low) & (begins - low < len(every))] - low]
    common = Counter(map(bytes, np.ascontiguousarray(some))).most_common(1)
    if not common or common[0][1] < MIN_WINDOWS:
        return []
    distances = np.frombuffer(common[0][0], step.dtype)
    first = np.flatnonzero((every == distances).all(1)) + low
    if (np.diff(first) < size).any():
        return []  # distances that repeat within a step tell nothing
    between = np.diff(first) - size
    apart = launches.correlation[first[1:]] - launches.correlation[first[:-1] + size - 1]
    least = int(apart[between == 0].min()) if (between == 0).any() else 1
    fewest = -(-between // size)
    most = (apart - least) // (int(distances.sum()) + least)
    missing = fewest * size - between  # half a step or more: rather calls that are in no step, and fewer steps
    sure = (fewest == most) & (missing <= (1 - MOST_LEFT) * fewest * size) & (2 * missing < size)
    turn = np.concatenate([[0], np.cumsum(fewest + 1)])
    parts = np.split(np.arange(len(first)), np.flatnonzero(~sure) + 1)
    return [Windows(first[p], turn[p] - turn[p[0]], distances) for p in parts]


def _fill(launches: Launches, usual: Usual, slack_ns: int, place: Array) -> None:
    """Pair in order the steps between two windows, if nothing is missing there: as many kernels as places, as many
    calls, none of them late, and distances that are not of one step only (a lost record leaves its own)."""
    size, placed = usual.size, np.flatnonzero(place >= 0)
    call = np.full(int(max(place.max(initial=-1), usual.place.max())) + 2, -1, np.int64)
    call[usual.place] = usual.index
    gap = np.flatnonzero(np.diff(placed) > size)
    starts = []
    for a, b in zip(placed[gap].tolist(), placed[gap + 1].tolist(), strict=True):
        count, first, last = b - a, call[place[a]], call[place[b]]
        if place[b] - place[a] == count and first >= 0 and last - first == count and (place[a] + 1) % size == 0:
            starts += [(k, int(place[a]) + k - a) for k in range(a + 1, b - size + 1, size)]
    distances = [np.diff(launches.correlation[k : k + size]).tobytes() for k, _ in starts]
    seen = Counter(distances)
    for (kernel, first), own in zip(starts, distances, strict=True):
        at, wanted = np.arange(kernel, kernel + size), np.arange(first, first + size)
        known = np.searchsorted(usual.place, wanted)
        klass = launches.klass[at]
        if seen[own] < 2 or (usual.place[known] != wanted).any() or not ((klass == 0) | (klass == usual.klass)).all():
            continue
        if (launches.start_ns[at] >= usual.start_ns[known] - slack_ns).all():
            place[at] = wanted
