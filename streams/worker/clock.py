"""Provide the worker's clock for silence, timeouts and broken times: the broker's clock, and it never steps back.

A worker's wall clock may be hours wrong, and would make every row late. Acknowledgements of ticks and markers carry the
broker's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from drumline.infra.telemetry import metrics

log = structlog.get_logger()
#: aiokafka's timestamp type of a time that the broker set.
_LOG_APPEND_TIME = 1
#: By how much the error of a known time grows with its age: more than quartz drifts, and NTP slews. An acknowledgement
#: that waited a minute for its broker so never replaces one that took a millisecond.
DRIFT = 1e-3
#: A wall clock further from the broker's is reported; s.
SKEW_S = 5.0


def steady_ns() -> int:
    """Return a clock that no one sets, in ns; where the system has one, it counts the time of a suspended machine."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StreamClock:
    """Returns nanoseconds since 1970 by the broker's clock, and never steps back.

    Until a broker's time is known, it is the wall clock. If its source steps back, this clock continues from its last
    value and stays ahead until the source has caught up; ahead of the broker's, it runs at half the pace until then. It
    follows a step ahead; ticks take that for a gap (ticks.TickGapDetector). `skew_s`: how far the wall clock is ahead
    of the broker's; None = unknown.
    """

    def __init__(self, wall: Callable[[], int] = time.time_ns, steady: Callable[[], int] = steady_ns) -> None:
        self._wall, self._steady = wall, steady
        self._known: tuple[float, int, int] | None = None  # (largest error, broker - steady, when it was learned)
        self._now = self._at = 0
        self.skew_s: float | None = None
        self._reported = False

    def __call__(self) -> int:
        """Return the current time; it never decreases."""
        at = self._steady()
        source, rate = (self._wall(), 1.0) if self._known is None else (at + self._known[1], 0.5)
        passed = round(rate * (at - self._at))
        self._now, self._at = max(source, self._now + passed if self._now else 0), at
        return self._now

    def watch(self, sent: Any) -> None:
        """Learn the broker's time from the acknowledgement of a record that was sent just now (a future)."""
        began = self._steady()
        sent.add_done_callback(lambda done: self._acknowledged(began, done))

    def _acknowledged(self, began: int, done: Any) -> None:
        if not done.cancelled() and done.exception() is None and done.result().timestamp_type == _LOG_APPEND_TIME:
            self.learn(began, done.result().timestamp * 1_000_000, self._steady())

    def learn(self, sent: int, broker_ns: int, acknowledged: int) -> None:
        """Take in the broker's time between two values of the steady clock, unless a better one is known."""
        error = (acknowledged - sent) / 2
        if self._known is None or error <= self._known[0] + DRIFT * (acknowledged - self._known[2]):
            self._known = error, broker_ns - (sent + acknowledged) // 2, acknowledged
        self.skew_s = (self._wall() - self._steady() - self._known[1]) / 1e9
        metrics.STREAM_CLOCK_SKEW.set(self.skew_s)
        skewed = abs(self.skew_s) > SKEW_S + self._known[0] / 1e9
        if skewed and not self._reported:
            log.warning(
                "this host's clock is wrong, or the broker's: set both by NTP; the broker's is used",
                ahead_s=round(self.skew_s, 1),
            )
        self._reported = skewed
