"""Send ticks: one record per partition and second, which makes silence a message.

Timers may not touch tables or produce results (docs/design/streams.md). So the timer only sends ticks. A tick arrives
in order with all other records of the partition's worker, and closes windows of silent sources.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.forget_tick import job_to_forget
from drumline.infra.runtime.stage import Stage
from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
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
#: A partition without a worker for longer holds nothing up any more; ns. The session is 10 s, recovery comes on top.
MOST_NS = 60_000_000_000


class TickGapDetector:
    """Decides whether silence is the producers' own.

    While Kafka is down no source is active, and ticks return before producers do: after a gap in the ticks, and at the
    start, silence is measured again, once the records that had waited are read. `idle_ns`: how long silence must last
    to count.
    """

    def __init__(self, idle_ns: int) -> None:
        self._idle_ns, self._last_ns, self._since_ns = idle_ns, 0, 0
        self._reads_back = True

    def due(self, now_ns: int) -> bool:
        """Return False for ticks that had queued up behind each other."""
        return now_ns - self._last_ns >= TICK_S * 5e8

    def observe(self, now_ns: int, behind: bool) -> bool:
        """Record a tick; return True if ticks have come for `idle_ns` without a gap, and no record waits.

        `behind`: records wait in Kafka, or that is not known.
        """
        gap = now_ns - self._last_ns > GAP_S * 1e9
        self._reads_back = behind and (gap or self._reads_back)
        if gap or self._reads_back:
            self._since_ns = now_ns
        self._last_ns = now_ns
        return not behind and now_ns - self._since_ns >= self._idle_ns


class OtherWorkers:
    """Learns until when the partitions of other workers surely had a worker, from the ends of their ticks.

    A stage that reads results of other workers cannot tell a source that ended from one whose worker was halted or
    killed: until the session has expired, nobody reads the records of that partition, and its results are missing.
    Times are the worker's clock, in ns.
    """

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int | None, int]] = {}  # partition -> (end, until when it had a worker)
        self._before_ns = 0

    def observe(self, ends: Mapping[int, int | None], now_ns: int) -> None:
        """Take in the ends of all partitions of other workers. `now_ns`: when they were requested.

        A tick that is new came after the request before.
        """
        known, before_ns = self._ends, self._before_ns or now_ns
        self._ends, self._before_ns = {}, now_ns
        for number, end in ends.items():
            last, alive_ns = known.get(number, (end, now_ns))
            self._ends[number] = end, alive_ns if end == last else max(alive_ns, before_ns)

    def time(self, now_ns: int) -> int:
        """Return the time up to which every partition surely had a worker; it is at most MOST_NS behind `now_ns`."""
        oldest = min((alive_ns for _, alive_ns in self._ends.values()), default=now_ns)
        return oldest if now_ns - oldest <= MOST_NS else now_ns


class Ticks:
    """Sends and handles the ticks of one worker; used in its event loop.

    `fail`: ends the worker. `clock`: learns the broker's time from acknowledged ticks. `partitions`: of each topic.
    `dependent`: stages that read results, which other workers may write: to them, time passes only while each partition
    surely has a worker.

    Attributes:
        answered: when the broker acknowledged a tick last; monotonic, s.
        came: partition -> ticks that came back from it.
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
        partitions: int,
        dependent: Collection[str],
    ) -> None:
        self._app, self._settings, self._runners, self._lag = app, settings, runners, lag
        self._clock = clock
        self._partitions, self._dependent = partitions, frozenset(dependent)
        self._peers = OtherWorkers()
        self._request: asyncio.Future[None] | None = None
        self._readiness, self._fail = readiness, fail
        self._gaps: dict[int, TickGapDetector] = {}
        self.answered = 0.0
        self.came: Counter[int] = Counter()
        self._failing: set[tuple[str, int]] = set()  # (stage, partition) whose last tick failed
        self._ending: asyncio.Future[None] | None = None

    async def send(self, partitions: Iterable[int]) -> None:
        """Send one tick to each partition."""
        for number in partitions:
            sent = await self._app.producer.send(Topic.TICK, None, b"", number, None, None)
            sent = asyncio.ensure_future(sent)
            self._clock.watch(sent)
            sent.add_done_callback(self._sent)

    def watch_others(self, held: Collection[int]) -> None:
        """Request the ends of the other workers' ticks, in the background; the answer may take longer than a tick."""
        if self._request is None or self._request.done():
            self._request = asyncio.ensure_future(self._learn_ends(held))

    async def _learn_ends(self, held: Collection[int]) -> None:
        from faust.types import TP

        peers = [TP(Topic.TICK, number) for number in range(self._partitions) if number not in held]
        now_ns = self._clock()
        thread = self._app.consumer._thread
        try:
            ends = {}
            if peers:  # not by Faust's queue of calls, where commits would wait behind it
                request = thread._ensure_consumer().end_offsets(peers)
                ends = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(request, thread.thread_loop))
        except Exception as error:  # without an answer, time does not pass for dependent stages
            log.debug("the ends of ticks are not known", error=str(error))
        else:
            self._peers.observe({tp.partition: end for tp, end in ends.items()}, now_ns)

    def _sent(self, sent: asyncio.Future[object]) -> None:
        """End the worker if Kafka denies ticks; a lost tick does no harm."""
        error = None if sent.cancelled() else sent.exception()
        if error is None and not sent.cancelled():
            self.answered = time.monotonic()
        if error is not None and self._ending is None and permanent_error(self._settings, error):
            self._ending = asyncio.ensure_future(self._fail(error))

    async def arrived(self, number: int, now_ns: int, delivery: Delivery, value: bytes | None = b"") -> None:
        """Close the silent windows of every stage of a partition, or forget the job that the tick's value names.

        Ticks that queued up count as one. Raises ProducerFailed.
        """
        self.came[number] += 1
        if job := job_to_forget(value):
            await self._for_each(number, delivery, lambda _: partial(_forget, job=job))
            log.info("state of a job is forgotten", partition=number, job=job)
            return
        gaps = self._gaps.setdefault(number, TickGapDetector(round(self._settings.stream.idle_s * 1e9)))
        if not gaps.due(now_ns):
            return
        self._readiness.mark_tick(time.monotonic())
        caught_up = gaps.observe(now_ns, behind=self._lag.records() != 0)

        def close_silent(stage: str) -> Callable[[Stage], list[Batch]]:
            known_ns = self._peers.time(now_ns) if stage in self._dependent else now_ns
            return partial(_on_tick, now_ns=known_ns, caught_up=caught_up)

        await self._for_each(number, delivery, close_silent)

    async def _for_each(
        self, number: int, delivery: Delivery, work_of: Callable[[str], Callable[[Stage], list[Batch]]]
    ) -> None:
        """Let each stage of a partition do its work. `work_of`: of a stage's name."""
        for runner in self._runners.values():
            try:
                if runner.stage(number) is not None:
                    delivery.add(*await runner.apply(number, work_of(runner.name)))
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
        self._peers = OtherWorkers()
        self._failing.clear()
        self._readiness.health.set_reason("tick", "")


def _forget(stage: Stage, job: str) -> list[Batch]:
    stage.forget_job(job)
    return []


def _on_tick(stage: Stage, now_ns: int, caught_up: bool) -> list[Batch]:
    return stage.on_tick(now_ns, caught_up)
