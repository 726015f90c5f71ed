"""Segments of a live process's activity: where one can end, and which kernels, markers and copies belong to it.

A segment ends with a step all of whose collectives have run, or where the GPU has caught up with the host. Times are ns
since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START, end_ns
from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.derive.nccl.calls import NcclCalls, grouped, groups, nccl_calls
from drumline.producers.derive.steps.steps import Steps, is_step
from drumline.schemas.columns import Array

#: Longest delay between the end of a kernel and its arrival here, in a process without faults.
SETTLE_NS = 1_000_000_000
#: Steps whose calls and NCCL kernels are kept: more than enough to find whole steps again (template, resync).
KEPT_STEPS = 8
_FAR = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SegmentEnd:
    """End of a segment.

    Attributes:
        host_ns: end in the host's time.
        launches: number of NCCL kernels that belong to the segment, in launch order.
        gpu_ns: end of the last of them.
        kept_ns, kept_launches, kept_gpu_ns: the same for the part that the next segment need not derive again.
        step: number of the last step, -1 = none.
        step_low: the last step's calls are launches step_low .. launches.
    """

    host_ns: int
    launches: int
    gpu_ns: int
    kept_ns: int
    kept_launches: int
    kept_gpu_ns: int
    step: int = -1
    step_low: int = 0


@dataclass(frozen=True)
class SegmentEndFinder:
    """Finds the latest end that a segment can have.

    Attributes:
        steps, calls: as the host made them.
        nccl_kernels: in launch order.
        settled_ns: everything that ended before has arrived.
        now_ns: current time.
        complete_until_ns: activity of the host before this has arrived, with the kernels that it launched.
        emitted_ns, emitted_gpu_ns: end of the emitted part, in host and GPU time.
        begun: an earlier segment was derived.
        expects_steps: steps will come; None = nothing more will come.
        timed_out: no step is waited for any more.
    """

    steps: Steps
    calls: NcclCalls
    nccl_kernels: Table
    settled_ns: int
    now_ns: int
    complete_until_ns: int
    emitted_ns: int
    emitted_gpu_ns: int
    begun: bool
    expects_steps: bool | None
    timed_out: bool

    def latest(self, most: int = _FAR) -> SegmentEnd | None:
        """Return the latest end, None where there is none yet; `most`: kernels that may belong to the segment."""
        certain = certain_kernels(self.nccl_kernels, self.settled_ns)
        ended_ns = np.concatenate([[0], np.maximum.accumulate(end_ns(self.nccl_kernels))])
        late = self.expects_steps is None or self.timed_out
        end = self._with_step(certain, ended_ns, late, most)
        if end is not None or (self.expects_steps and not late) or most < _FAR:
            return end
        return self._without_step(certain, ended_ns)

    def _with_step(self, certain: int, ended_ns: Array, late: bool, most: int) -> SegmentEnd | None:
        """Find the end of a step; `certain`: number of certain kernels, `ended_ns`: when the first n had all ended."""
        steps = self.steps
        before, behind = (np.searchsorted(self.calls.start_ns, at) for at in (steps.start_ns, steps.end_ns))
        gpu = np.maximum(
            ended_ns[np.minimum(behind, self.nccl_kernels.rows)], np.where(behind > before, 0, steps.end_ns)
        )
        quiet = (gpu <= self.settled_ns) | (self.now_ns - gpu > 2 * SETTLE_NS)
        ready = (behind <= certain) & (steps.end_ns > self.emitted_ns) & quiet & (behind <= most)
        ready &= steps.end_ns <= self.complete_until_ns
        if not (ready.any() and (self.begun or late or ready.sum() >= KEPT_STEPS)):
            return None
        last = int(np.flatnonzero(ready)[-1])
        first = max(last - KEPT_STEPS + 1, 0)
        return SegmentEnd(
            host_ns=int(steps.end_ns[last]),
            launches=int(behind[last]),
            gpu_ns=int(gpu[last]),
            kept_ns=int(steps.start_ns[first]),
            kept_launches=int(before[first]),
            kept_gpu_ns=int(gpu[last - 1]) if last else self.emitted_gpu_ns,
            step=int(steps.number[last]),
            step_low=int(before[last]),
        )

    def _without_step(self, certain: int, ended_ns: Array) -> SegmentEnd | None:
        """Find the time at which the GPU has caught up with the host."""
        calls = self.calls
        host = self.now_ns if self.expects_steps is None else min(self.now_ns - 2 * SETTLE_NS, self.complete_until_ns)
        if certain < len(calls.start_ns) and self.expects_steps is not None:
            host = min(host, int(calls.start_ns[certain]))
        across = calls.start_ns[(calls.start_ns < host) & (calls.end_ns > host)]
        host = min([host, *across.tolist()])  # a call that is open at the end is kept, and so is its kernel
        if self.expects_steps is not None and host - self.emitted_ns < SETTLE_NS:
            return None
        number = int(np.searchsorted(calls.start_ns, host))
        gpu_ns = max(int(ended_ns[min(number, self.nccl_kernels.rows)]), host)
        return SegmentEnd(host, number, gpu_ns, host, number, gpu_ns)


def certain_kernels(nccl_kernels: Table, settled_ns: int) -> int:
    """Return how many kernels, in launch order, certainly have no missing kernel between them."""
    late = np.flatnonzero(end_ns(nccl_kernels) > settled_ns)
    return int(late[0]) if len(late) else nccl_kernels.rows


def host_calls(ranges: Table, payloads: Table, steps: Steps) -> NcclCalls:
    """Return the launches that the host requested, by start."""
    calls = nccl_calls(ranges, payloads)
    group = groups(ranges, calls.start_ns, steps.start_ns)
    return grouped(calls, group) if group.any() else calls


def in_segment(kernels: Table, nccl_kernels: Table, end: SegmentEnd) -> Array:
    """Return which kernels belong to a segment: bool."""
    inside: Array = kernels["start_ns"] < end.gpu_ns
    inside[nccl_kernels["row"]] = False
    inside[nccl_kernels["row"][: end.launches]] = True
    return inside


def kernels_behind(nccl_kernels: Table, collectives: Table, end: SegmentEnd) -> int | None:
    """Return by how many kernels, all lost, the kernels lag behind the calls at the end of a segment.

    None where the last step was not matched as a whole.
    """
    starts = collectives["start_ns"][collectives["step"] == end.step]
    at = np.flatnonzero(np.isin(nccl_kernels["start_ns"], starts))
    whole = end.step >= 0 and len(starts) and len(at) == len(starts) == end.launches - end.step_low
    return end.step_low - int(at[0]) if whole else None


def endless_ranges(markers: Table, until_ns: int, pattern: str, source: str, before_ns: int) -> Array:
    """Return ids of ranges that are open at the end of a step and whose end was lost.

    These are steps of the same kind (steps do not nest), and others that began before a time. `pattern`, `source`: see
    steps.is_step().
    """
    open_, _ = _open_ranges(markers, until_ns)
    ids: Array = open_["id"][is_step(open_, pattern, source) | (open_["time_ns"] < before_ns)]
    return ids


def closed(markers: Table, until_ns: int) -> tuple[Table, Array]:
    """Return the markers up to a time, with an end for each open range, and the ids of those ranges.

    The ends lie just behind `until_ns`, so that ranges inside find their parent.
    """
    open_, inside = _open_ranges(markers, until_ns)
    ending = {"time_ns": np.full(open_.rows, until_ns + 1), "flags": np.full(open_.rows, MARKER_END, np.int32)}
    both = concatenate_tables([inside, Table({**open_.columns, **ending}, inside.dictionaries)])
    return both, open_["id"]


def _open_ranges(markers: Table, until_ns: int) -> tuple[Table, Table]:
    """Return the start markers of ranges that are open at a time, and all markers up to it."""
    inside = markers.take(markers["time_ns"] <= until_ns)
    start, stop = (inside["flags"] & MARKER_START) != 0, (inside["flags"] & MARKER_END) != 0
    return inside.take(start & ~np.isin(inside["id"], inside["id"][stop])), inside
