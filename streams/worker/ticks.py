"""Ticks: a record per partition and second, by which silence becomes a message.

Timers may not touch tables or emit (docs/design/streams.md). So the timer only sends ticks, and the tick's arrival,
in order with everything else of the partition's worker, closes what has been silent.
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
from drumline.streams.worker.checks.auth_errors import refused
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.output import ProducerFailed
from drumline.streams.worker.stage_runner import Fail, StageRunner
from drumline.streams.worker.telemetry import Readiness

log = structlog.get_logger()
TICK_S = 1.0
#: Longer without a tick is an outage; s.
GAP_S = 3.0


class Pulse:
    """Whether silence is the producers' own. While Kafka is away nobody is heard, and ticks come back before producers
    do: after a gap in the ticks, and at first, silence counts anew. `idle_ns`: how long silence must last to mean
    something."""

    def __init__(self, idle_ns: int) -> None:
        self._idle_ns, self._last_ns, self._since_ns = idle_ns, 0, 0

    def due(self, now_ns: int) -> bool:
        """False for ticks that had queued up behind each other."""
        return now_ns - self._last_ns >= TICK_S * 5e8

    def beat(self, now_ns: int) -> bool:
        """A tick has come; whether they have been coming for `idle_ns` without a gap."""
        if now_ns - self._last_ns > GAP_S * 1e9:
            self._since_ns = now_ns
        self._last_ns = now_ns
        return now_ns - self._since_ns >= self._idle_ns


class Ticks:
    """Of one worker. `fail`: ends it."""

    def __init__(
        self,
        app: Any,
        settings: Settings,
        runners: Mapping[str, StageRunner],
        lag: Lag,
        readiness: Readiness,
        fail: Fail,
    ) -> None:
        self._app, self._settings, self._runners, self._lag = app, settings, runners, lag
        self._readiness, self._fail = readiness, fail
        self._pulses: dict[int, Pulse] = {}
        self._failing: set[tuple[str, int]] = set()  # (stage, partition) whose last tick failed
        self._ending: asyncio.Future[None] | None = None

    async def send(self, partitions: Iterable[int]) -> None:
        """One for each."""
        for number in partitions:
            sent = await self._app.producer.send(Topic.TICK, None, b"", number, None, None)
            asyncio.ensure_future(sent).add_done_callback(self._sent)

    def _sent(self, sent: asyncio.Future[object]) -> None:
        """Nobody misses a tick, unless none will ever be allowed."""
        error = None if sent.cancelled() else sent.exception()
        if error is not None and self._ending is None and refused(self._settings, error):
            self._ending = asyncio.ensure_future(self._fail(error))

    async def arrived(self, number: int, now_ns: int, delivery: Delivery) -> None:
        """Let every stage of a partition close what has been silent. Ticks that queued up count as one. Raises
        NotTaken."""
        pulse = self._pulses.setdefault(number, Pulse(round(self._settings.stream.idle_s * 1e9)))
        if not pulse.due(now_ns):
            return
        self._readiness.heard(time.monotonic())
        caught_up = pulse.beat(now_ns) and self._lag.records() == 0
        for runner in self._runners.values():
            try:
                if runner.stage(number) is not None:
                    work = partial(_on_tick, now_ns=now_ns, caught_up=caught_up)
                    delivery.add(*await runner.apply(number, work))
                    self._fails(runner.name, number, False)
            except ProducerFailed:
                raise
            except Exception:  # a defect of ours: no record is at fault, and the other stages go on
                log.exception("stage failed on a tick", stage=runner.name, partition=number)
                metrics.STREAM_TICKS_FAILED.labels(runner.name).inc()
                self._fails(runner.name, number, True)

    def _fails(self, stage: str, number: int, failed: bool) -> None:
        """Not ready while any stage of a partition that is ours fails."""
        (self._failing.add if failed else self._failing.discard)((stage, number))
        stages = ", ".join(sorted({name for name, _ in self._failing}))
        self._readiness.health.set_reason("tick", f"fails on ticks, see the log: {stages}" if stages else "")

    def reset(self) -> None:
        """Partitions have moved: of those that went, nothing is heard again."""
        self._pulses.clear()
        self._failing.clear()
        self._readiness.health.set_reason("tick", "")


def _on_tick(stage: Stage, now_ns: int, caught_up: bool) -> list[Batch]:
    return stage.on_tick(now_ns, caught_up)
