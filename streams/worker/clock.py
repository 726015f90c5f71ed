"""The worker's clock: silence, patience and resending are judged by it, so it may not step back."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Nanoseconds since 1970 by the wall clock, but never slower than time passes: where that steps back, this goes on
    from where it was, and stays ahead until the wall clock has caught up, or the worker starts again. A step ahead is
    followed; ticks take it for a gap (tick.Pulse)."""

    def __init__(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._steady = wall, steady
        self._now, self._at = wall(), steady()

    def __call__(self) -> int:
        at = self._steady()
        self._now, self._at = max(self._wall(), self._now + at - self._at), at
        return self._now
