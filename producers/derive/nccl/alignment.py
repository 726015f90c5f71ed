"""Alignment of kernel windows with steps of calls: one integer offset, which two of four witnesses must support.

- time: no kernel starts before its call. The largest offset that allows is the true one if the host was ever in step;
- front, back: the number of records before the first step and after the last one. Of a live process the front counts
  from the last known match, and the back is unknown;
- rhythm: where the host takes longer between two calls, it makes more CUDA calls between them.

Windows of a live process with kernels that were matched before need no other witness. All times are int64 ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.derive.nccl.kernels import NcclKernels, index_among
from drumline.producers.derive.steps.template import StepTemplate
from drumline.schemas.columns import Array

#: Lead of the best rhythm correlation over all others that makes it count.
RHYTHM_LEAD = 0.1


@dataclass(frozen=True)
class KernelWindows:
    """Runs of kernels with the same distances between correlation ids, of which none is missing.

    Attributes:
        first: [windows], index of each one's first kernel.
        step_ordinal: [windows], number of steps from the first window to each one.
        distances: [size - 1], between neighbouring kernels.
    """

    first: Array
    step_ordinal: Array
    distances: Array


def align(
    kernels: NcclKernels, template: StepTemplate, windows: KernelWindows, slack_ns: int, phase: int | None = None
) -> int | None:
    """Return what to add to step_ordinal * size + position of the windows; None if the witnesses disagree.

    `slack_ns`: how far a kernel may seem to start before its call. `phase`: position in the step at which windows
    begin, where it is known.
    """
    size = template.size
    operation_class = kernels.operation_class[windows.first[:, None] + np.arange(size)]
    allowed = [
        q
        for q in range(size)
        if ((operation_class == 0) | (operation_class == np.roll(template.operation_class, -q))).all()
    ]
    latest = _by_time(kernels, template, windows, slack_ns)
    if not allowed or not len(latest):
        return None
    most = int(latest.min())
    phase = _rhythm(windows.distances, template, allowed) if phase is None else phase
    counted = [_by_count(kernels, windows, template, from_back) for from_back in (False, True)]
    timed = most % size in allowed and most % size == phase and 2 * (latest == most).sum() >= len(windows.first)
    if kernels.known_call is not None:
        known, front = _by_known_calls(windows, template, kernels.known_call), counted[0]
        if known is None and front is not None:
            if front == most or (front < most and front % size == phase):
                known = front
            elif timed and (kernels.known_call < 0).all():  # the first kernels are of calls that were not recorded
                known = most
        return known if known is not None and known <= most and known % size in allowed else None
    front, back = counted
    if front is not None and front == back != most:
        if timed:  # both counts wrong by as much? Believed if at least they contradict the rhythm
            return most if front % size != phase else None
        return front if front < most and front % size in allowed and phase in (front % size, -1) else None
    return most if timed or (most in counted and most % size in allowed) else None


def _by_time(kernels: NcclKernels, template: StepTemplate, windows: KernelWindows, slack_ns: int) -> Array:
    """Return for each window the largest offset with which no kernel starts before its call.

    Windows behind all calls are left out.
    """
    place = windows.step_ordinal[:, None] * template.size + np.arange(template.size)
    start = kernels.start_ns[windows.first[:, None] + np.arange(template.size)]
    later = np.searchsorted(template.start_ns, start + slack_ns, side="right")
    bound = np.append(template.place, np.iinfo(np.int64).max)[later] - 1 - place
    latest: Array = bound[later.min(1) < len(template.place)].min(1)
    return latest


def _by_known_calls(windows: KernelWindows, template: StepTemplate, known_call: Array) -> int | None:
    """Return the offset of the last known match; None if there is none."""
    call = known_call[windows.first[:, None] + np.arange(template.size)].ravel()
    place = windows.step_ordinal[:, None] * template.size + np.arange(template.size)
    among = index_among(template.index, call)
    at = np.flatnonzero((call >= 0) & (among >= 0))
    return int(template.place[among[at[-1]]] - place.ravel()[at[-1]]) if len(at) else None


def _by_count(kernels: NcclKernels, windows: KernelWindows, template: StepTemplate, from_back: bool) -> int | None:
    """Return the offset if as many calls as kernels were recorded before the first templated step, or after the last
    one.
    """
    offset = template.call_count - len(kernels) if from_back else 0
    if kernels.known_call is not None:
        before = np.flatnonzero(kernels.known_call[: windows.first[0]] >= 0)
        if from_back or not kernels.counted or not (len(before) or kernels.began):
            return None
        offset = int(kernels.known_call[before[-1]] - before[-1]) if len(before) else 0
    order = slice(None, None, -1) if from_back else slice(None)
    kernel, place = template.index[order] - offset, template.place[order]
    w = np.searchsorted(windows.first, kernel, side="right") - 1
    position = kernel - windows.first[np.maximum(w, 0)]
    templated = np.flatnonzero((w >= 0) & (position < template.size))
    if not len(templated):
        return None
    at = templated[0]
    return int(place[at] - windows.step_ordinal[w[at]] * template.size - position[at])


def _rhythm(distances: Array, template: StepTemplate, allowed: list[int]) -> int:
    """Return the position in the step at which windows begin, by the host's time between calls; -1 = undecided."""
    if len(allowed) == 1:
        return allowed[0]
    log_distances, log_gaps = np.log(np.maximum(distances, 1)), np.log(np.maximum(template.gap_ns, 1))
    if log_distances.std() == 0.0:
        return -1
    fits = []
    for q in allowed:
        other = np.roll(log_gaps, -q)[:-1]
        known = np.isfinite(other)
        same = known.sum() >= 3 and log_distances[known].std() > 0.0 and other[known].std() > 0.0
        fits.append(float(np.corrcoef(log_distances[known], other[known])[0, 1]) if same else -1.0)
    best = int(np.argmax(fits))
    lead = fits[best] - max(fits[:best] + fits[best + 1 :])
    return allowed[best] if lead >= RHYTHM_LEAD else -1
