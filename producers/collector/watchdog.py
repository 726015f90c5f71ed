"""Watchdogs of the collector thread: a counter that does not move, and steps for which CUPTI delivers no kernels."""

from __future__ import annotations

#: First delay of a restart for missing kernels; ns. Steps are shorter, and a restart costs a millisecond.
MISSING_NS = 10_000_000_000
#: Longest delay, reached by doubling: a job may legitimately run steps without kernels; ns.
MAX_MISSING_NS = 600_000_000_000


class StallDetector:
    """Measures how long a counter has not changed.

    Counts the caller's own ticks instead of wall time, so a job that was suspended (SIGSTOP) is not taken for stalled.
    """

    def __init__(self, tick_s: float) -> None:
        self._tick_s, self._counter, self._seconds = tick_s, 0, 0.0

    def tick(self, counter: int) -> float:
        """Take the counter's value, once every `tick_s`, and return the seconds since it changed."""
        self._seconds = 0.0 if counter != self._counter else self._seconds + self._tick_s
        self._counter = counter
        return self._seconds


class MissingKernelDetector:
    """Decides when to restart recording because steps complete but CUPTI delivers no kernels.

    Copies and markers arrive all the same, so only steps without kernels show it. Fires after 10 s, then with doubling
    delays up to 10 min. The delay falls back to 10 s after as long a time with kernels.
    """

    def __init__(self) -> None:
        self._delay_ns, self._started_ns, self._last_gap_ns = MISSING_NS, 0, 0

    def recording_started(self, now_ns: int) -> None:
        """Ignore steps from before `now_ns`."""
        self._started_ns = now_ns

    def tick(self, no_kernels_since_ns: int, now_ns: int) -> bool:
        """Return whether to restart now; called while recording is on.

        `no_kernels_since_ns`: since when steps have no kernel, 0 = they have; known about a second late.
        """
        gap_ns = now_ns - max(no_kernels_since_ns, self._started_ns)
        if not no_kernels_since_ns:  # the decoder knows of a step at its end: this one and the next may come later
            if gap_ns > self._delay_ns + 2 * self._last_gap_ns:
                self._delay_ns = MISSING_NS
            return False
        if gap_ns < self._delay_ns:
            return False
        self._last_gap_ns = gap_ns
        self._delay_ns = min(2 * self._delay_ns, MAX_MISSING_NS)
        return True
