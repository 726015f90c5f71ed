"""Steps of a job that marks none: NCCL's calls have a period (derive/steps/inferred_steps.py)."""

from __future__ import annotations

import numpy as np

from drumline.producers.derive.nccl.calls import NcclCalls
from drumline.producers.derive.steps.inferred_steps import CallPeriod, find_period, inferred_steps
from drumline.producers.derive.steps.steps import INFERRED
from drumline.producers.rings.operations import function_codes, kernel_starts
from drumline.producers.rings.state import RingState
from drumline.producers.rings.step_cuts import RingView, Segments
from drumline.schemas.columns import Array

#: Time and number of calls after which a period is searched for; ns.
SEARCH_NS, SEARCH_CALLS = 20_000_000_000, 4_096


class UnmarkedCalls:
    """The calls in a ring without marks of steps, and the segments that their period gives.

    `segments`: the last one is open, and holds calls that may begin a step.
    """

    def __init__(self, called: Array, at: Array, state: RingState, view: RingView) -> None:
        first = kernel_starts(called, np.zeros(len(called), np.int64))
        self._at, self._communicator = at[first], called["comm"][first]
        self._state = state
        self._period = np.array(state.period, np.uint64).reshape(-1, 3)
        self._steps = np.empty(0, np.int64)
        calls = self._calls(called, first)
        if not len(self._period) and self._is_due(calls, view):
            period = find_period(calls.take(slice(1, None)))
            self._period = period.symbols if period else self._period
            state.period = self._period.tolist()
        self.segments = self._segments(calls, view)

    def publish(self, end: int) -> None:
        """Note that the calls at positions before `end` are published."""
        published, size = int(np.searchsorted(self._at, end)), len(self._period)
        ended = self._steps[self._steps + size <= published] + size
        since = self._state.calls_since if not len(ended) else -int(ended[-1])
        self._state.calls_since = since + published
        if published:
            self._state.last_communicator = int(self._communicator[published - 1])

    def _calls(self, called: Array, first: Array) -> NcclCalls:
        """Return the calls behind one that stands for the last one before, whose communicator they begin with."""
        operation, size = function_codes(called, first)
        place = np.arange(len(first))
        times = np.maximum.accumulate(called["host_ns"].astype(np.int64)[first] - place) + place  # strictly rising
        before = 0 if len(first) == 0 else int(times[0]) - 1
        return NcclCalls(
            np.append(before, times),
            np.append(np.uint8(0), operation),
            np.append(self._state.last_communicator, self._communicator).astype(np.uint64),
            np.append(np.uint64(0), size),
            np.ones(len(first) + 1, bool),
            np.append(before, times),
            np.full(len(first) + 1, -1, np.int32),
        )

    def _is_due(self, calls: NcclCalls, view: RingView) -> bool:
        count = len(self._at)
        old = count > 0 and int(calls.start_ns[1]) < view.now_ns - SEARCH_NS
        return count > 0 and (view.ended or view.tight or old or count >= SEARCH_CALLS)

    def _segments(self, calls: NcclCalls, view: RingView) -> Segments:
        """Return a segment for each step, and for the calls between two that follow no period."""
        state, size, count = self._state, len(self._period), len(self._at)
        begins: list[tuple[int, int, int]] = []  # call, number, time
        if size:
            state.steps_from = INFERRED
            begin_ns = inferred_steps(calls, CallPeriod(self._period)).start_ns
            self._steps = np.searchsorted(calls.start_ns, begin_ns) - 1
            number, end = state.newest, -state.calls_since
            for call in self._steps.tolist():
                number += 1 + int((call - end) / size + 0.5)
                if call > end and begins:
                    begins.append((end, -1, int(calls.start_ns[end]) + 1))
                begins.append((call, number, int(calls.start_ns[call + 1])))
                end = call + size
            if 0 <= end < count and len(self._steps):
                begins.append((end, -1, int(calls.start_ns[end]) + 1))
            rest = max(end, 0)
            if count - rest > 2 * size:  # no step begins here
                begins.append((count - size, -1, int(calls.start_ns[count - size + 1])))
        at = np.array([self._at[call] for call, _, _ in begins], np.int64)
        return Segments(
            at,
            np.array([-1, *(number for _, number, _ in begins)], np.int64),
            np.array([0, *(start for _, _, start in begins)], np.int64),
            np.full(len(begins) + 1, state.offset, np.int64),
            np.zeros(len(begins) + 1, bool),  # a step with calls that are not recorded is none of the period
            np.zeros(len(begins) + 1, bool),  # without marks all is measured
            held=0,
            holds=not view.tight and (size > 0 or not self._is_due(calls, view)),
        )
