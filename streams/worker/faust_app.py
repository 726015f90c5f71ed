"""Build one Faust app from stages: an agent per topic, a table per stage, ticks."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec, Parts
from drumline.schemas.dead_letters import is_counted
from drumline.schemas.errors import BadRecord, RegistryUnavailable
from drumline.schemas.joined.merged import MergedParts
from drumline.schemas.tenants import is_signed
from drumline.schemas.topics import DERIVED_TOPICS, KEPT_TOPICS, RAW_TOPICS, Topic
from drumline.streams.core.batch_dedup import checksum
from drumline.streams.core.stage import Stage
from drumline.streams.worker.ack_queue import AckQueue, Delivery
from drumline.streams.worker.checkpoints import Checkpoints
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.clock import StreamClock
from drumline.streams.worker.decoder import RecordDecoder
from drumline.streams.worker.faust_config import SESSION_S, faust_settings
from drumline.streams.worker.faust_patches.commits import commit_as_member
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing
from drumline.streams.worker.faust_patches.fetch import limit_fetch_delay
from drumline.streams.worker.faust_patches.reconnect import slow_down_reconnects
from drumline.streams.worker.faust_patches.recovery import guard_recovery
from drumline.streams.worker.faust_patches.unpacking import limit_unpacking
from drumline.streams.worker.halts import HaltDetector, rejoin, report_from_consumer
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.output import OutputProducer, ProducerFailed
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore
from drumline.streams.worker.stage_runner import StageRunner
from drumline.streams.worker.status_file import StatusReporter
from drumline.streams.worker.telemetry import Readiness, count_input, count_merged, watch_commits
from drumline.streams.worker.ticks import TICK_S, Ticks
from drumline.streams.worker.workdir import lock_working_directory

log = structlog.get_logger()
#: Changes of state that wait for the producer before agents pause. Faust's 100 is one second's worth at low load.
MAX_UNSENT = 2000


class PartitionRevoked(Exception):
    """The record's partition belongs to another worker now."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Declares a stage, the topics that it reads, and its name in logs and in its changelog's name.

    `order`: of the checkpoints of its state; None = each change is written at once.
    """

    name: str
    inputs: tuple[str, ...]
    build: Callable[[PartitionStore], Stage]
    order: CheckpointOrder | None = None


class StreamWorker:
    """Runs the stages of one worker in a Faust app.

    Built by `app.build`; the caller runs `app`, calls `readiness.observe` a few times a second, and calls `close` at
    the end. Everything runs in the app's event loop. `app`: the Faust app. `failure`: the error that ended it, if any.
    Raises NameTaken, OSError (workdir.py).
    """

    def __init__(
        self,
        settings: Settings,
        wirings: Sequence[Wiring],
        topics: WorkerTopics,
        codec: Codec,
        health: Health | None = None,
    ) -> None:
        import faust

        self.failure: BaseException | None = None
        self.topics = topics
        self._working_directory = lock_working_directory(settings)
        self._clock = StreamClock()
        slow_down_reconnects()
        limit_unpacking()
        commit_as_member()
        self.app: Any = faust.App(**faust_settings(settings, self._working_directory.path, topics.partitions))
        self._output = OutputProducer(self.app, codec)
        send, ids = self._output.send, topics.ids
        self._fencing = fencing = ChangelogFencing(self.app, self._close_stages, self._clock)
        self.runners = {
            w.name: StageRunner(self.app, w.name, w.build, send, self._fail, ids, fencing, w.order) for w in wirings
        }
        self.checkpoints = Checkpoints(self.app, self.runners.values(), self.check_halt, self._fail)
        fencing.watch()
        self._readers: dict[str, list[StageRunner]] = {}
        for wiring in wirings:
            for topic in wiring.inputs:
                self._readers.setdefault(topic, []).append(self.runners[wiring.name])
        self.lag = Lag(self.app, self._readers)
        self._queues: dict[str, AckQueue] = {}
        self._status = StatusReporter(self._working_directory.path, topics.partitions, self.lag)
        for topic in self._readers:
            self._agent(topic, self._on_record)
        self._agent(Topic.TICK, self._on_tick_record)
        self.app.timer(TICK_S)(self._tick)
        self.app.producer.buffer.max_messages = MAX_UNSENT
        self.app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        guard_recovery(self.app, self._was_replaced, fencing.holds_all)
        limit_fetch_delay(self.app)
        self._halts = HaltDetector(SESSION_S)
        report_from_consumer(self.app, self._halts)
        health = health or Health()
        self._decoder = RecordDecoder(codec, health, lambda: self.app.rebalancing or self.app.should_stop)
        self.readiness = Readiness(self.app, health)
        dependent = [wiring.name for wiring in wirings if DERIVED_TOPICS.intersection(wiring.inputs)]
        self._ticks = Ticks(
            self.app, settings, self.runners, self.lag, self.readiness, self._fail, self._clock,
            topics.partitions, dependent,
        )  # fmt: skip
        watch_commits(self.app, self.readiness, time.monotonic)

    def _agent(self, topic: str, handle: Callable[[Any], Awaitable[Delivery | None]]) -> None:
        queue = AckQueue(self._fail)
        self._queues[topic] = queue
        source = self.app.topic(topic, key_type=bytes, value_type=bytes)

        async def agent(stream: Any) -> None:
            self.checkpoints.start()
            async for event in stream.noack().events():
                delivery = await handle(event)
                if delivery is not None:
                    await queue.put(delivery)

        self.app.agent(source, name=f"drumline.{topic}")(agent)

    def check_halt(self) -> None:
        """Stop writing after a halt that was longer than the session, and join again; called often.

        Messages are not acknowledged then, and are read again from the state that is restored.
        """
        if self._halts.take():
            log.warning("worker was halted for longer than its session; state is read back", session_s=SESSION_S)
            metrics.STREAM_HALTS.inc()
            self._close_stages()
            rejoin(self.app)

    async def _on_record(self, event: Any) -> Delivery | None:
        """Decode a record, apply it to every stage that reads the topic, and produce the results. Never raises.

        A rejected record becomes a dead letter. Any other error ends the worker; the record is not acknowledged and is
        read again.
        """
        if self.failure is not None:
            return None
        await self.checkpoints.below_limit()
        self.check_halt()
        message = event.message
        readers = self._readers[message.topic]
        try:
            if any(runner.stage(message.partition) is None for runner in readers):  # nothing holds its dead letter back
                raise PartitionRevoked
            delivery = Delivery(self.checkpoints.acknowledger(event, readers))
            await self._handle(message, delivery)
        except PartitionRevoked:
            metrics.STREAM_DISOWNED.labels(message.topic).inc()
            self.app.consumer._unacked_messages.discard(message)  # which a rebalance would wait for
            return None
        except (ProducerFailed, RegistryUnavailable) as error:
            await self._fail(error)
            return None
        self.lag.handled(message.tp, message.offset)
        metrics.STREAM_RECORDS.labels(message.topic).inc()
        return delivery

    def _stages(self, message: Any) -> list[Stage | None]:
        """Return the stages that read a message."""
        return [runner.stage(message.partition) for runner in self._readers[message.topic]]

    async def _handle(self, message: Any, delivery: Delivery) -> None:
        """Process one message, or each of its parts. Raises PartitionRevoked, ProducerFailed, RegistryUnavailable."""
        if message.topic in KEPT_TOPICS and is_counted(message.headers):
            return  # its host has published the windows of these rows
        try:
            parts = await self._decoder.parts(message.topic, message.value, message.key, message.headers)
        except BadRecord as error:
            await self._bury(message, delivery, error)
            return
        if parts is None:
            await self._handle_batch(message, delivery)
        elif parts.merged is not None and is_inside(parts.merged, _appended_ms(message)):
            await self._handle_merged(message, delivery, parts.merged)
        else:
            try:
                values = parts.values
            except BadRecord as error:
                await self._bury(message, delivery, error)
                return
            stages = self._stages(message)
            for number, value in enumerate(values, 1):
                if any(now is not before for now, before in zip(self._stages(message), stages, strict=True)):
                    raise PartitionRevoked  # and assigned again: the new stage reads the whole record
                await self._handle_batch(message, delivery, number, value, parts)

    async def _handle_batch(
        self, message: Any, delivery: Delivery, part: int = 0, value: bytes | None = None, of: Parts | None = None
    ) -> None:
        """Process a batch. `part`, `value`, `of`: of a part of the message."""
        bytes_of = message.value if value is None else value
        try:
            batch = await self._decoder.decode(
                message.topic, bytes_of, _appended_ms(message), message.key, message.headers, of
            )  # fmt: skip
            if message.topic in RAW_TOPICS:  # a worker's results replace each other
                batch.content = checksum(bytes_of)
            count_input(batch, self._clock())
            await self._apply(message, delivery, partial(_on_batch, batch=batch), part)
        except BadRecord as error:
            await self._bury(message, delivery, error, part, value)
        except (PartitionRevoked, ProducerFailed, RegistryUnavailable):
            raise
        except Exception as error:
            await self._bury_failed(message, delivery, error, part, value)

    async def _handle_merged(self, message: Any, delivery: Delivery, parts: MergedParts) -> None:
        """Process all parts of a message at once: they are within their bounds. Raises as `_handle` does."""
        try:
            count_merged(parts, self._clock())
            await self._apply(message, delivery, partial(_on_merged, parts=parts), 1)
        except (PartitionRevoked, ProducerFailed):
            raise
        except Exception as error:
            await self._bury_failed(message, delivery, error)

    async def _apply(self, message: Any, delivery: Delivery, work: Callable[..., list[Batch]], part: int) -> None:
        """Pass a batch, or parts from `part` on, to the stages that read it. Raises what they and `_handle` raise."""
        for runner in self._readers[message.topic]:
            if runner.stage(message.partition) is None:
                raise PartitionRevoked
            if message.topic in DERIVED_TOPICS and runner.is_fenced(message):
                continue
            offset = runner.position(message.topic, message.partition, message.offset, part)
            delivery.add(*await runner.apply(message.partition, partial(work, offset=offset, now_ns=self._clock())))

    async def _bury_failed(
        self, message: Any, delivery: Delivery, error: Exception, part: int = 0, value: bytes | None = None
    ) -> None:
        place = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
        log.error("dead letter: its stage failed", error=type(error).__name__, **place)
        await self._bury(message, delivery, error, part, value)

    async def _bury(
        self, message: Any, delivery: Delivery, error: Exception, part: int = 0, value: bytes | None = None
    ) -> None:
        """Produce the dead letter of a message or part; of parts that were signed together, one of the message."""
        if part and is_signed(message.headers):
            part, value = 0, None
        if delivery.is_buried:
            return
        delivery.is_buried = not part
        delivery.writes.append(await self._output.send_dead_letter(message, error, part, value))

    async def _on_tick_record(self, event: Any) -> Delivery | None:
        if self.failure is not None:
            return None
        self.check_halt()
        delivery = Delivery(event.ack)
        try:
            await self._ticks.arrived(event.message.partition, self._clock(), delivery)
        except ProducerFailed as error:
            await self._fail(error)
            return None
        return delivery

    async def _tick(self) -> None:
        """Send ticks and publish the status. It only sends: a timer may not touch tables."""
        now = time.monotonic()
        if self.app.rebalancing or self.app.in_recovery:
            self.readiness.progress(0, 0, (0.0, ""), now)
            return
        assigned: Iterable[Any] = self.app.consumer.assignment()
        numbers = sorted(tp.partition for tp in assigned if tp.topic == Topic.TICK)
        await self._ticks.send(numbers)
        self._ticks.watch_others(numbers)
        await self.lag.prepare()
        # No await from here on: the status describes one moment.
        still_open = sum(runner.open_windows for runner in self.runners.values())
        queues = [queue for topic, queue in self._queues.items() if topic != Topic.TICK]
        unsettled = sum(queue.unsettled for queue in queues) + self.checkpoints.waiting
        settled = sum(queue.settled for queue in queues) - self.checkpoints.held
        self.readiness.progress(settled, unsettled, self.lag.standstill(now), now)
        self._status.publish(numbers, still_open, unsettled, time.time_ns(), self._clock.skew_s)

    def _close_stages(self) -> None:
        for runner in self.runners.values():
            runner.close()

    def _was_replaced(self, tp: Any) -> bool:
        return any(runner.was_replaced(tp.topic, tp.partition) for runner in self._readers.get(tp.topic, ()))

    async def _on_assigned(self, *sent: Any, **_: Any) -> None:
        self.lag.reset()
        self.readiness.assigned(sent[1], time.monotonic())
        self._ticks.reset()

    async def _fail(self, error: BaseException) -> None:
        """End the worker: the broker rejected state or results, or state cannot be read. The next worker replays."""
        if self.failure is not None:
            return
        self.failure = error
        log.error("worker ends", error=str(error) or repr(error))
        await self.app.crash(error)

    def close(self) -> None:
        """Stop acknowledging and unlock the working directory."""
        for queue in self._queues.values():
            queue.cancel()
        self.checkpoints.cancel()
        self._working_directory.unlock()


def _on_batch(stage: Stage, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
    return stage.on_batch(batch, offset, now_ns)


def _on_merged(stage: Stage, parts: MergedParts, offset: int, now_ns: int) -> list[Batch]:
    return stage.on_merged(parts, offset, now_ns)


def _appended_ms(message: Any) -> int:
    """Return when Kafka took a message in."""
    return round((message.timestamp or 0) * 1000)
