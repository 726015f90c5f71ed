"""Which NCCL kernel belongs to which call where records were lost: whole steps are found again, the rest is left out.

A training step makes the same calls every time and, between two of its NCCL launches, as many other CUDA calls: CUPTI's
correlation ids, which count CUDA calls, step through it in the same distances whatever was recorded. Windows of kernels
with these distances are counted off on the kernels' side, steps by their numbers on the calls' side; one integer, the
*shift*, says which window is which step. It has to be said by two of four witnesses:

- time: no kernel starts before its call. The largest shift that allows is the true one if the host was ever in step;
- front, back: how many records came before the first step, after the last one (of a live process: since the last pair
  that was told; of the back nothing is known);
- rhythm: where the host takes longer between two calls it makes more CUDA calls between them.

Windows with kernels of a live process that were paired before need no other witness.
What lies between two windows is paired in order if nothing is missing there. Pure; all times int64 ns.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from drumline.producers.usual import Usual
from drumline.schemas.columns import Array

#: A pattern of distances counts as the job's own from so many windows on.
MIN_WINDOWS = 5
#: By how much the correlation of rhythm must lead every other one's to count.
RHYTHM_LEAD = 0.1
#: Steps between two windows are counted by their kernels if at least this part of those is left.
MOST_LEFT = 0.75
_FAR = np.iinfo(np.int64).max
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Launches:
    """NCCL kernels in launch order. `klass`: operation codes, 0 = says nothing; `correlation`, `start_ns`: int64.
    `told`: of a live process, the index of each one's call where that was told before, else -1; None = all that the
    process did is here. `began`: the first one is the first of the recording. `counted`: see Told."""

    klass: Array
    correlation: Array
    start_ns: Array
    told: Array | None = None
    began: bool = True
    counted: bool = True

    def __len__(self) -> int:
        return len(self.klass)

    def take(self, index: Array) -> Launches:
        """The kernels at these positions."""
        return Launches(self.klass[index], self.correlation[index], self.start_ns[index])


@dataclass(frozen=True)
class Told:
    """What earlier stretches of a live process paired: `correlation` of kernels, and when their calls began, int64.
    `began`: see Launches. `counted`: no loss is known, so counts are believed where distances tell nothing else.
    `launched`: correlation of kernels whose launch was recorded, rising, and `launched_ns`: when that was."""

    correlation: Array
    call_ns: Array
    began: bool = True
    counted: bool = True
    launched: Array = field(default_factory=lambda: _NONE)
    launched_ns: Array = field(default_factory=lambda: _NONE)

    def calls_of(self, launches: Launches, start_ns: Array) -> Array:
        """For each kernel the index of its call, -1 = not told. `start_ns`: of all calls, rising."""
        order = np.argsort(self.correlation, kind="stable")
        pair, call = _index(self.correlation[order], launches.correlation), _index(start_ns, self.call_ns[order])
        return np.where(pair >= 0, np.append(call, -1)[pair], -1)

    def launched_at(self, launches: Launches) -> Array:
        """For each kernel when the host launched it; -1 = not known."""
        at = _index(self.launched, launches.correlation)
        return np.where(at >= 0, np.append(self.launched_ns, -1)[at], -1)


def _index(among: Array, values: Array) -> Array:
    """Where each value stands among sorted ones; -1 = nowhere."""
    at = np.searchsorted(among, values)
    return np.where((at < len(among)) & (np.append(among, 0)[at] == values), at, -1)


@dataclass(frozen=True)
class Windows:
    """Runs of kernels with the same distances, of which none is missing. `first` [w]: index of each one's first kernel,
    `turn` [w]: how many steps after the first window's it is."""

    first: Array
    turn: Array
    distances: Array


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
    both = ((windows, _shift(launches, usual, windows, slack_ns, phase)) for windows in chains)
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


def _shift(launches: Launches, usual: Usual, windows: Windows, slack_ns: int, phase: int | None = None) -> int | None:
    """What to add to turn * size + position of the windows; None if the witnesses do not agree. `phase`: position in
    the step that windows begin with, if that is known already."""
    size = usual.size
    klass = launches.klass[windows.first[:, None] + np.arange(size)]
    allowed = [q for q in range(size) if ((klass == 0) | (klass == np.roll(usual.klass, -q))).all()]
    latest = _by_time(launches, usual, windows, slack_ns)
    if not allowed or not len(latest):
        return None
    most = int(latest.min())
    phase = _rhythm(windows.distances, usual, allowed) if phase is None else phase
    counted = [_by_count(launches, windows, usual, from_back) for from_back in (False, True)]
    timed = most % size in allowed and most % size == phase and 2 * (latest == most).sum() >= len(windows.first)
    if launches.told is not None:
        known, front = _by_told(windows, usual, launches.told), counted[0]
        if known is None and front is not None:
            if front == most or (front < most and front % size == phase):
                known = front
            elif timed and (launches.told < 0).all():  # the first kernels are of calls that were not recorded
                known = most
        return known if known is not None and known <= most and known % size in allowed else None
    front, back = counted
    if front is not None and front == back != most:
        if timed:  # both counts wrong by as much? Believed if at least they contradict the rhythm
            return most if front % size != phase else None
        return front if front < most and front % size in allowed and phase in (front % size, -1) else None
    return most if timed or (most in counted and most % size in allowed) else None


def _by_time(launches: Launches, usual: Usual, windows: Windows, slack_ns: int) -> Array:
    """For each window the largest shift with which no kernel starts before its call, but for those after all calls."""
    place = windows.turn[:, None] * usual.size + np.arange(usual.size)
    start = launches.start_ns[windows.first[:, None] + np.arange(usual.size)]
    later = np.searchsorted(usual.start_ns, start + slack_ns, side="right")
    bound = np.append(usual.place, np.iinfo(np.int64).max)[later] - 1 - place
    latest: Array = bound[later.min(1) < len(usual.place)].min(1)
    return latest


def _by_told(windows: Windows, usual: Usual, told: Array) -> int | None:
    """The shift that pairs told before say; None if there are none. The last one counts."""
    call = told[windows.first[:, None] + np.arange(usual.size)].ravel()
    place = windows.turn[:, None] * usual.size + np.arange(usual.size)
    among = _index(usual.index, call)
    at = np.flatnonzero((call >= 0) & (among >= 0))
    return int(usual.place[among[at[-1]]] - place.ravel()[at[-1]]) if len(at) else None


def _by_count(launches: Launches, windows: Windows, usual: Usual, from_back: bool) -> int | None:
    """The shift if as many calls as kernels were recorded before the first usual step, or after the last one."""
    offset = usual.calls - len(launches) if from_back else 0
    if launches.told is not None:
        before = np.flatnonzero(launches.told[: windows.first[0]] >= 0)
        if from_back or not launches.counted or not (len(before) or launches.began):
            return None
        offset = int(launches.told[before[-1]] - before[-1]) if len(before) else 0
    order = slice(None, None, -1) if from_back else slice(None)
    for call, place in zip(usual.index[order].tolist(), usual.place[order].tolist(), strict=True):
        w = int(np.searchsorted(windows.first, call - offset, side="right")) - 1
        position = call - offset - int(windows.first[max(w, 0)])
        if w >= 0 and position < usual.size:
            return int(place - windows.turn[w] * usual.size - position)
    return None


def _rhythm(distances: Array, usual: Usual, allowed: list[int]) -> int:
    """The position in the step that a window begins with, by the host's time between calls; -1 = undecided."""
    if len(allowed) == 1:
        return allowed[0]
    ours, host = np.log(np.maximum(distances, 1)), np.log(np.maximum(usual.apart_ns, 1))
    if ours.std() == 0.0:
        return -1
    fits = []
    for q in allowed:
        other = np.roll(host, -q)[:-1]
        known = np.isfinite(other)
        same = known.sum() >= 3 and ours[known].std() > 0.0 and other[known].std() > 0.0
        fits.append(float(np.corrcoef(ours[known], other[known])[0, 1]) if same else -1.0)
    best = int(np.argmax(fits))
    lead = fits[best] - max(fits[:best] + fits[best + 1 :])
    return allowed[best] if lead >= RHYTHM_LEAD else -1


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
