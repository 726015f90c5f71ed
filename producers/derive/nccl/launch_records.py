"""Matching of kernels with calls by the time of their launch, which CUPTI records for a while after a loss.

A kernel's own time does not identify its call where the host is ahead of the GPU. The record of the CUDA driver call
that launched it has the same correlation id and the host's clock, as NVTX ranges have: the launch lies in NCCL's range,
or in that of the end of its group. Such a match is right whatever else was lost. The records cost, so they are
requested only after a loss (`LaunchRecordRequest`); from these matches on, counting continues. Times are int64 ns.
"""

from __future__ import annotations

import numpy as np

from drumline.schemas.columns import Array

#: Longest recording of launches, and the break after one that did not help; ns.
MOST_NS = 120_000_000_000
PAUSE_NS = 600_000_000_000


def calls_of(launched_ns: Array, start_ns: Array, end_ns: Array) -> Array:
    """Return for each kernel the index of the call in which it was launched.

    -1 = in none, in one of two (threads; groups of several communicators), or not the only one. `launched_ns`: -1 =
    unknown. `start_ns` (rising), `end_ns`: of calls.
    """
    if len(start_ns) == 0:
        return np.full(len(launched_ns), -1, np.int64)
    call = np.searchsorted(start_ns, launched_ns, side="right") - 1
    before = np.concatenate([[-1], np.maximum.accumulate(end_ns)[:-1]])
    inside = (call >= 0) & (launched_ns <= end_ns[call]) & (launched_ns > before[call])
    kernels = np.bincount(call[inside], minlength=len(start_ns))
    return np.where(inside & (kernels[call] == 1), call, -1)


class LaunchRecordRequest:
    """Decides when to record launches; `times` counts how often it began."""

    def __init__(self) -> None:
        self.times = 0
        self._began = self._not_before = 0

    def wanted(self, now_ns: int, unmatched: bool) -> bool:
        """Return whether launches are to be recorded now. `unmatched`: kernels cannot be matched without them."""
        if self._began and (not unmatched or now_ns - self._began > MOST_NS):
            self._began, self._not_before = 0, now_ns + (PAUSE_NS if unmatched else 0)
        elif unmatched and not self._began and now_ns >= self._not_before:
            self._began, self.times = now_ns, self.times + 1
        return self._began > 0
