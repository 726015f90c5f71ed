"""Provide the worker's clock for silence, timeouts and resending; it never steps back."""

from __future__ import annotations

import time
from collections.abc import Callable


class StreamClock:
    """Returns nanoseconds since 1970 by the wall clock, but never slower than time passes.

    If the wall clock steps back, this clock continues from its last value and stays ahead until the wall clock has
    caught up, or the worker restarts. It follows a step ahead; ticks take that for a gap (ticks.TickGapDetector).
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._steady = wall, steady
        self._now, self._at = wall(), steady()

    def __call__(self) -> int:
        """Return the current time; it never decreases."""
        at = self._steady()
        self._now, self._at = max(self._wall(), self._now + at - self._at), at
        return self._now
