"""Provide the worker's clock for silence, timeouts and broken times: the broker's clock, and it never steps back.

A worker's wall clock may be hours wrong, and would make every row late. Acknowledgements of ticks and markers carry the
broker's time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from drumline.infra.telemetry import metrics

log = structlog.get_logger()
#: aiokafka's timestamp type of a time that the broker set.
_LOG_APPEND_TIME = 1
#: The best of so many acknowledgements counts: the one that came back soonest.
SAMPLES = 8
#: A wall clock further from the broker's is reported; s.
SKEW_S = 5.0


def steady_ns() -> int:
    """Return a clock that no one sets, in ns; where the system has one, it counts the time of a suspended machine."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StreamClock:
    """Returns nanoseconds since 1970 by the broker's clock, but never slower than time passes.

    Until a broker's time is known, it is the wall clock. If its source steps back, this clock continues from its last
    value and stays ahead until the source has caught up, or the worker restarts. It follows a step ahead; ticks take
    that for a gap (ticks.TickGapDetector). `skew_s`: how far the wall clock is ahead of the broker's; None = unknown.
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = steady_ns) -> None:
        self._wall, self._steady = wall, steady
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES)  # (duration of the request, broker - steady)
        self._now = self._at = 0
        self.skew_s: float | None = None
        self._reported = False

    def __call__(self) -> int:
        """Return the current time; it never decreases."""
        at = self._steady()
        now = at + min(self._samples)[1] if self._samples else self._wall()
        self._now, self._at = max(now, self._now + at - self._at if self._now else 0), at
        return self._now

    def watch(self, sent: Any) -> None:
        """Learn the broker's time from the acknowledgement of a record that was sent just now (a future)."""
        began = self._steady()
        sent.add_done_callback(lambda done: self._acknowledged(began, done))

    def _acknowledged(self, began: int, done: Any) -> None:
        if not done.cancelled() and done.exception() is None and done.result().timestamp_type == _LOG_APPEND_TIME:
            self.learn(began, done.result().timestamp * 1_000_000, self._steady())

    def learn(self, sent: int, broker_ns: int, acknowledged: int) -> None:
        """Take in the broker's time between two values of the steady clock."""
        self._samples.append((acknowledged - sent, broker_ns - (sent + acknowledged) // 2))
        self.skew_s = (self._wall() - self._steady() - min(self._samples)[1]) / 1e9
        metrics.STREAM_CLOCK_SKEW.set(self.skew_s)
        skewed = abs(self.skew_s) > SKEW_S
        if skewed and not self._reported:
            log.warning(
                "this host's clock is wrong, or the broker's: set both by NTP; the broker's is used",
                ahead_s=round(self.skew_s, 1),
            )
        self._reported = skewed
