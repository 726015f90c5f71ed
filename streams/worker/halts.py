"""Detect that the worker was halted for longer than its session, so that it stops writing as soon as it continues.

Kafka has then given its partitions to another worker, and this one learns that only from its next heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from drumline.streams.worker.clock import steady_ns

#: How often the consumer's thread reports, s; nothing blocks that thread for long.
REPORT_S = 0.5


class HaltDetector:
    """Compares the time that passed with the reports of a thread that never blocks.

    `alive` is called by that thread, `take` by the event loop. `clock`: steady, in ns.
    """

    def __init__(self, session_s: float, clock: Callable[[], int] = steady_ns) -> None:
        self._session_ns, self._clock = round(session_s * 1e9), clock
        self._alive_at: int | None = None  # the thread has not started
        self._halted = False

    def alive(self) -> None:
        """Record that the thread runs."""
        now = self._clock()
        self._halted |= self._alive_at is not None and now - self._alive_at > self._session_ns
        self._alive_at = now

    def take(self) -> bool:
        """Return True once for each halt, also if the event loop continues before the thread does."""
        if self._alive_at is not None and self._clock() - self._alive_at > self._session_ns:
            self.alive()
        halted, self._halted = self._halted, False
        return halted


def report_from_consumer(app: Any, detector: HaltDetector) -> None:
    """Make the thread of `app`'s consumer report to `detector`. Call once, before the app starts."""
    thread = app.consumer._thread
    create = thread._create_consumer

    def create_consumer(loop: asyncio.AbstractEventLoop) -> Any:
        def report() -> None:
            detector.alive()
            loop.call_later(REPORT_S, report)

        client = create(loop)
        report()
        return client

    thread._create_consumer = create_consumer


def rejoin(app: Any) -> None:
    """Make the consumer of `app` join its group again, so that state is restored in the partitions that it gets."""
    thread = app.consumer._thread
    thread.thread_loop.call_soon_threadsafe(thread._ensure_consumer()._coordinator.request_rejoin)
