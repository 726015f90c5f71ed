"""Which of the windows found among the kernels is which step among the calls: one integer, the *shift* (resync.py).

It has to be said by two of four witnesses:

- time: no kernel starts before its call. The largest shift that allows is the true one if the host was ever in step;
- front, back: how many records came before the first step, after the last one (of a live process: since the last pair
  that was told; of the back nothing is known);
- rhythm: where the host takes longer between two calls it makes more CUDA calls between them.

Windows with kernels of a live process that were paired before need no other witness. Pure; all times int64 ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.derive.nccl.kernels import Launches, index_among
from drumline.producers.derive.steps.template import Usual
from drumline.schemas.columns import Array

#: By how much the correlation of rhythm must lead every other one's to count.
RHYTHM_LEAD = 0.1


@dataclass(frozen=True)
class Windows:
    """Runs of kernels with the same distances, of which none is missing. `first` [w]: index of each one's first kernel,
    `turn` [w]: how many steps after the first window's it is."""

    first: Array
    turn: Array
    distances: Array


def shift_of(launches: Launches, usual: Usual, windows: Windows, slack_ns: int, phase: int | None = None) -> int | None:
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
    among = index_among(usual.index, call)
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
