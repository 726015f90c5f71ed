"""Build one Faust app from stages: an agent per topic, a table per stage, ticks."""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from drumline.infra.config.settings import Settings
from drumline.infra.runtime.stage import Stage
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryUnavailable
from drumline.schemas.topics import DERIVED_TOPICS, Topic
from drumline.streams.worker.ack_queue import AckQueue, Delivery
from drumline.streams.worker.checkpoints import Checkpoints
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.checks.standstill import StandstillDetector, WorkStandsStill
from drumline.streams.worker.clock import StreamClock
from drumline.streams.worker.faust_config import SESSION_S, faust_settings
from drumline.streams.worker.faust_patches.delivery import bytes_topic
from drumline.streams.worker.faust_patches.fencing import ChangelogFencing
from drumline.streams.worker.faust_patches.install import Hooks, install
from drumline.streams.worker.halts import HaltDetector, rejoin
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.output import OutputProducer, ProducerFailed
from drumline.streams.worker.partition_store import CheckpointOrder, PartitionStore
from drumline.streams.worker.records.decoder import RecordDecoder
from drumline.streams.worker.records.grouping import BUFFERED, TOGETHER, pieces, take_waiting, wait_until_filled
from drumline.streams.worker.records.handler import PartitionRevoked, RecordHandler
from drumline.streams.worker.stage_runner import StageRunner
from drumline.streams.worker.status_file import StatusReporter
from drumline.streams.worker.telemetry import Readiness
from drumline.streams.worker.ticks import TICK_S, Ticks
from drumline.streams.worker.workdir import lock_working_directory

log = structlog.get_logger()
#: Changes of state that wait for the producer before agents pause. Faust's 100 is one second's worth at low load.
MAX_UNSENT = 2000
#: New objects after which garbage is looked for, some MB. Python's 700 come with each buffer of records, and a large
#: job has hundreds of thousands that stay. What is made of records refers to nothing in a circle, so it leaves none.
YOUNG_OBJECTS = 20_000


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
        gc.set_threshold(YOUNG_OBJECTS)
        self.app: Any = faust.App(**faust_settings(settings, self._working_directory.path, topics.partitions))
        self._codec = codec
        output = OutputProducer(self.app, codec)
        send, ids = output.send, topics.ids
        self._fencing = fencing = ChangelogFencing(self.app, self._close_stages, self._clock)
        self.runners = {
            w.name: StageRunner(self.app, w.name, w.build, send, self._fail, ids, fencing, w.order) for w in wirings
        }
        self.checkpoints = Checkpoints(self.app, self.runners.values(), self.check_halt, self._fail)
        self._readers: dict[str, list[StageRunner]] = {}
        for wiring in wirings:
            for topic in wiring.inputs:
                self._readers.setdefault(topic, []).append(self.runners[wiring.name])
        self.lag = Lag(self.app, self._readers)
        self._queues: dict[str, AckQueue] = {}
        self._standstill = StandstillDetector()
        self._status = StatusReporter(self._working_directory.path, topics.partitions, self.lag)
        for topic in self._readers:
            self._agent(topic, self._on_records)
        self._agent(Topic.TICK, self._on_ticks)
        self.app.timer(TICK_S)(self._tick)
        self.app.producer.buffer.max_messages = MAX_UNSENT
        self.app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        self._halts = HaltDetector(SESSION_S)
        health = health or Health()
        decoder = RecordDecoder(codec, health, lambda: self.app.rebalancing or self.app.should_stop)
        self.records = RecordHandler(self._readers, codec, decoder, output, self._clock)
        self.readiness = Readiness(self.app, health)
        dependent = [wiring.name for wiring in wirings if DERIVED_TOPICS.intersection(wiring.inputs)]
        self._ticks = Ticks(
            self.app, settings, self.runners, self.lag, self.readiness, self._fail, self._clock,
            topics.partitions, dependent,
        )  # fmt: skip
        install(self.app, Hooks(fencing, self._halts, self._was_replaced, self._on_expired, self.readiness))

    def _agent(self, topic: str, handle: Callable[[Sequence[Any]], AsyncIterator[Delivery]]) -> None:
        queue = AckQueue(self._fail)
        self._queues[topic] = queue
        buffered = BUFFERED if topic in TOGETHER - DERIVED_TOPICS else None
        source = bytes_topic(self.app, topic, buffered)

        async def agent(stream: Any) -> None:
            self.checkpoints.start()
            async for event in stream.noack().events():
                messages = [event.message]
                if topic in TOGETHER:
                    await wait_until_filled(stream)
                    messages += [other.message for other in take_waiting(self.app, stream)]
                async for delivery in handle(messages):
                    await queue.put(delivery)
                del messages  # their bytes, while the next event is awaited

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

    def _on_expired(self, place: Any, offsets: range) -> None:
        jobs = {job for runner in self._readers.get(place.topic, ()) for job in runner.jobs(place.partition)}
        self.readiness.mark_expired(place, offsets, sorted(jobs), time.monotonic())

    async def _on_records(self, messages: Sequence[Any]) -> AsyncIterator[Delivery]:
        """Process messages of one topic, and yield the output of those that were processed together."""
        for piece in pieces(messages, self._codec):
            delivery = await self._process(piece)
            if delivery is not None:
                yield delivery

    async def _process(self, messages: Sequence[Any]) -> Delivery | None:
        """Decode records, apply them to every stage that reads the topic, and produce the results. Never raises.

        `messages`: of one topic and partition. A rejected record becomes a dead letter. Any other error ends the
        worker; the records are not acknowledged and are read again.
        """
        if self.failure is not None:
            return None
        await self.checkpoints.below_limit()
        self.check_halt()
        last = messages[-1]
        try:
            # Messages of before a rebalance are read again; ahead of others they would hide those from the state.
            if last.generation_id != self.app.consumer_generation_id or not self.records.owns(last):
                raise PartitionRevoked
            acknowledge = self.checkpoints.acknowledger(messages, self._readers[last.topic])
            delivery = Delivery(acknowledge, messages=len(messages))
            await self.records.handle(messages, delivery)
        except PartitionRevoked:
            metrics.STREAM_DISOWNED.labels(last.topic).inc(len(messages))
            for message in messages:
                self.app.consumer._unacked_messages.discard(message)  # which a rebalance would wait for
            return None
        except (ProducerFailed, RegistryUnavailable) as error:
            await self._fail(error)
            return None
        self.lag.handled(last.tp, last.offset, len(messages))
        metrics.STREAM_RECORDS.labels(last.topic).inc(len(messages))
        return delivery

    async def _on_ticks(self, messages: Sequence[Any]) -> AsyncIterator[Delivery]:
        for message in messages:
            if self.failure is not None:
                return
            self.check_halt()
            delivery = Delivery(partial(message.ack, self.app.consumer))
            try:
                await self._ticks.arrived(message.partition, self._clock(), delivery, message.value)
            except ProducerFailed as error:
                await self._fail(error)
                return
            yield delivery

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
        work = {topic: (queue.settled, queue.unsettled) for topic, queue in self._queues.items()}
        work |= {f"the ticks of partition {number}": (self._ticks.came[number], 1) for number in numbers}
        try:
            self._standstill.observe(work, self._ticks.answered, now)
        except WorkStandsStill as error:
            await self._fail(error)

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
