"""Which call a kernel belongs to, by when the host launched it: asked of CUPTI for a while where pairing was lost.

A kernel says when it ran, which tells nothing of its call where the host is ahead of the GPU. The record of the CUDA
driver call that launched it has the same correlation id and the host's clock, as NVTX ranges have: the launch lies in
NCCL's range, or in that of the end of its group. Whatever else was lost, such a pair is right; but those records cost,
so they are asked for only after a loss (`Asking`), and from the pairs on, counting goes on. Pure; times int64 ns.
"""

from __future__ import annotations

import numpy as np

from drumline.schemas.columns import Array

#: For so long at most; and not again for so long where that did not help; ns.
MOST_NS = 120_000_000_000
PAUSE_NS = 600_000_000_000


def calls_of(launched_ns: Array, start_ns: Array, end_ns: Array) -> Array:
    """For each kernel the index of the call in which it was launched; -1 = in none, in one of two (threads; groups of
    several communicators), or not the only one. `launched_ns`: -1 = not known. `start_ns` (rising), `end_ns`: of calls.
    """
    if len(start_ns) == 0:
        return np.full(len(launched_ns), -1, np.int64)
    call = np.searchsorted(start_ns, launched_ns, side="right") - 1
    before = np.concatenate([[-1], np.maximum.accumulate(end_ns)[:-1]])
    inside = (call >= 0) & (launched_ns <= end_ns[call]) & (launched_ns > before[call])
    kernels = np.bincount(call[inside], minlength=len(start_ns))
    return np.where(inside & (kernels[call] == 1), call, -1)


class Asking:
    """When to ask. `times`: how often it was begun."""

    def __init__(self) -> None:
        self.times = 0
        self._began = self._not_before = 0

    def wanted(self, now_ns: int, doubt: bool) -> bool:
        """Whether launches are to be recorded now. `doubt`: pairs are."""
        if self._began and (not doubt or now_ns - self._began > MOST_NS):
            self._began, self._not_before = 0, now_ns + (PAUSE_NS if doubt else 0)
        elif doubt and not self._began and now_ns >= self._not_before:
            self._began, self.times = now_ns, self.times + 1
        return self._began > 0
