"""Send ticks: one record per partition and second, which makes silence a message.

Timers may not touch tables or produce results (docs/design/streams.md). So the timer only sends ticks. A tick arrives
in order with all other records of the partition's worker, and closes windows of silent sources.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.streams.core.stage import Stage
from drumline.streams.worker.ack_queue import Delivery
from drumline.streams.worker.checks.auth_errors import permanent_error
from drumline.streams.worker.clock import StreamClock
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.output import ProducerFailed
from drumline.streams.worker.stage_runner import Fail, StageRunner
from drumline.streams.worker.telemetry import Readiness

log = structlog.get_logger()
TICK_S = 1.0
#: Longer without a tick is an outage; s.
GAP_S = 3.0


class TickGapDetector:
    """Decides whether silence is the producers' own.

    While Kafka is down no source is active, and ticks return before producers do: after a gap in the ticks, and at the
    start, silence is measured again. `idle_ns`: how long silence must last to count.
    """

    def __init__(self, idle_ns: int) -> None:
        self._idle_ns, self._last_ns, self._since_ns = idle_ns, 0, 0

    def due(self, now_ns: int) -> bool:
        """Return False for ticks that had queued up behind each other."""
        return now_ns - self._last_ns >= TICK_S * 5e8

    def observe(self, now_ns: int) -> bool:
        """Record a tick; return True if ticks have come for `idle_ns` without a gap."""
        if now_ns - self._last_ns > GAP_S * 1e9:
            self._since_ns = now_ns
        self._last_ns = now_ns
        return now_ns - self._since_ns >= self._idle_ns


class Ticks:
    """Sends and handles the ticks of one worker; used in its event loop.

    `fail`: ends the worker. `clock`: learns the broker's time from acknowledged ticks.
    """

    def __init__(
        self,
        app: Any,
        settings: Settings,
        runners: Mapping[str, StageRunner],
        lag: Lag,
        readiness: Readiness,
        fail: Fail,
        clock: StreamClock,
    ) -> None:
        self._app, self._settings, self._runners, self._lag = app, settings, runners, lag
        self._clock = clock
        self._readiness, self._fail = readiness, fail
        self._gaps: dict[int, TickGapDetector] = {}
        self._failing: set[tuple[str, int]] = set()  # (stage, partition) whose last tick failed
        self._ending: asyncio.Future[None] | None = None

    async def send(self, partitions: Iterable[int]) -> None:
        """Send one tick to each partition."""
        for number in partitions:
            sent = await self._app.producer.send(Topic.TICK, None, b"", number, None, None)
            sent = asyncio.ensure_future(sent)
            self._clock.watch(sent)
            sent.add_done_callback(self._sent)

    def _sent(self, sent: asyncio.Future[object]) -> None:
        """End the worker if Kafka denies ticks; a lost tick does no harm."""
        error = None if sent.cancelled() else sent.exception()
        if error is not None and self._ending is None and permanent_error(self._settings, error):
            self._ending = asyncio.ensure_future(self._fail(error))

    async def arrived(self, number: int, now_ns: int, delivery: Delivery) -> None:
        """Close the silent windows of every stage of a partition.

        Ticks that queued up count as one. Raises ProducerFailed.
        """
        gaps = self._gaps.setdefault(number, TickGapDetector(round(self._settings.stream.idle_s * 1e9)))
        if not gaps.due(now_ns):
            return
        self._readiness.mark_tick(time.monotonic())
        caught_up = gaps.observe(now_ns) and self._lag.records() == 0
        for runner in self._runners.values():
            try:
                if runner.stage(number) is not None:
                    work = partial(_on_tick, now_ns=now_ns, caught_up=caught_up)
                    delivery.add(*await runner.apply(number, work))
                    self._fails(runner.name, number, False)
            except ProducerFailed:
                raise
            except Exception:  # a defect of drumline: no record is at fault, and the other stages continue
                log.exception("stage failed on a tick", stage=runner.name, partition=number)
                metrics.STREAM_TICKS_FAILED.labels(runner.name).inc()
                self._fails(runner.name, number, True)

    def _fails(self, stage: str, number: int, failed: bool) -> None:
        """Report "not ready" while a stage fails on ticks in one of this worker's partitions."""
        (self._failing.add if failed else self._failing.discard)((stage, number))
        stages = ", ".join(sorted({name for name, _ in self._failing}))
        self._readiness.health.set_reason("tick", f"fails on ticks, see the log: {stages}" if stages else "")

    def reset(self) -> None:
        """Drop all gap detectors and failures, after partitions moved."""
        self._gaps.clear()
        self._failing.clear()
        self._readiness.health.set_reason("tick", "")


def _on_tick(stage: Stage, now_ns: int, caught_up: bool) -> list[Batch]:
    return stage.on_tick(now_ns, caught_up)
