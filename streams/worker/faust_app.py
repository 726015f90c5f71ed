"""One Faust app from stages: an agent per topic, a table per stage, ticks. What stages do is theirs."""

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
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord, RegistryUnavailable
from drumline.schemas.topics import Topic
from drumline.streams.core.stage import Stage
from drumline.streams.worker.ack_queue import Delivery, Settler
from drumline.streams.worker.checks.preflight import Topics
from drumline.streams.worker.clock import Clock
from drumline.streams.worker.decoder import Decoder
from drumline.streams.worker.faust_config import faust_settings
from drumline.streams.worker.faust_patches.fetch import keep_asking
from drumline.streams.worker.faust_patches.reconnect import be_patient
from drumline.streams.worker.faust_patches.recovery import guard_recovery
from drumline.streams.worker.lag import Lag
from drumline.streams.worker.output import OutputProducer, ProducerFailed
from drumline.streams.worker.partition_store import PartitionStore
from drumline.streams.worker.stage_runner import StageRunner
from drumline.streams.worker.status_file import Status
from drumline.streams.worker.telemetry import Readiness, count_input, notice_commits
from drumline.streams.worker.ticks import TICK_S, Ticks
from drumline.streams.worker.workdir import move_in

log = structlog.get_logger()
#: Changes of state that wait for the producer before agents pause. Faust's 100 is a second of quiet life.
MAX_UNSENT = 2000


class Disowned(Exception):
    """The record's partition is another worker's now."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A stage, the topics it reads, and what it is called in logs and in its changelog's name."""

    name: str
    inputs: tuple[str, ...]
    build: Callable[[PartitionStore], Stage]


class StreamWorker:
    """`app` is the Faust app. `failure` is the error that ended it, if one did. `readiness.observe` wants to be called
    by whoever runs the app. Raises NameTaken, OSError (home.py)."""

    def __init__(
        self,
        settings: Settings,
        wirings: Sequence[Wiring],
        topics: Topics,
        codec: Codec,
        health: Health | None = None,
    ) -> None:
        import faust

        self.failure: BaseException | None = None
        self.topics = topics
        self._home = move_in(settings)
        self._clock = Clock()
        be_patient()
        self.app: Any = faust.App(**faust_settings(settings, self._home.path, topics.partitions))
        self._output = OutputProducer(self.app, codec)
        send, ids = self._output.send, topics.ids
        self.runners = {w.name: StageRunner(self.app, w.name, w.build, send, self._fail, ids) for w in wirings}
        self._readers: dict[str, list[StageRunner]] = {}
        for wiring in wirings:
            for topic in wiring.inputs:
                self._readers.setdefault(topic, []).append(self.runners[wiring.name])
        self.lag = Lag(self.app, self._readers)
        self._settlers: dict[str, Settler] = {}
        self._status = Status(self._home.path, topics.partitions, self.lag)
        for topic in self._readers:
            self._agent(topic, self._on_record)
        self._agent(Topic.TICK, self._on_tick)
        self.app.timer(TICK_S)(self._tick)
        self.app.producer.buffer.max_messages = MAX_UNSENT
        self.app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        guard_recovery(self.app, self._replaced)
        keep_asking(self.app)
        health = health or Health()
        self._decoder = Decoder(codec, health, lambda: self.app.rebalancing or self.app.should_stop)
        self.readiness = Readiness(self.app, health)
        self._ticks = Ticks(self.app, settings, self.runners, self.lag, self.readiness, self._fail)
        notice_commits(self.app, self.readiness, time.monotonic)

    def _agent(self, topic: str, handle: Callable[[Any], Awaitable[Delivery | None]]) -> None:
        settler = Settler(self._fail)
        self._settlers[topic] = settler
        source = self.app.topic(topic, key_type=bytes, value_type=bytes)

        async def agent(stream: Any) -> None:
            async for event in stream.noack().events():
                delivery = await handle(event)
                if delivery is not None:
                    await settler.put(delivery)

        self.app.agent(source, name=f"drumline.{topic}")(agent)

    async def _on_record(self, event: Any) -> Delivery | None:
        """Decode, apply to every stage that reads the topic, send. Never raises: a record at fault is a dead letter.
        What is not the record's fault ends the worker; the record is not acknowledged and comes again."""
        if self.failure is not None:
            return None
        message = event.message
        delivery = Delivery(event.ack)
        try:
            await self._handle(message, delivery)
        except Disowned:
            metrics.STREAM_DISOWNED.labels(message.topic).inc()
            return None
        except (ProducerFailed, RegistryUnavailable) as error:
            await self._fail(error)
            return None
        self.lag.handled(message.tp, message.offset)
        metrics.STREAM_RECORDS.labels(message.topic).inc()
        return delivery

    async def _handle(self, message: Any, delivery: Delivery) -> None:
        """Raises Disowned, NotTaken, RegistryUnavailable."""
        try:
            batch = await self._decoder.decode(message.topic, message.value)
            count_input(batch, time.time_ns())
            for runner in self._readers[message.topic]:
                if runner.stage(message.partition) is None:
                    raise Disowned
                offset = runner.position(message.topic, message.partition, message.offset)
                work = partial(_on_batch, batch=batch, offset=offset, now_ns=self._clock())
                delivery.add(*await runner.apply(message.partition, work))
        except BadRecord as error:
            delivery.writes.append(await self._output.send_dead_letter(message, error))
        except (Disowned, ProducerFailed, RegistryUnavailable):
            raise
        except Exception as error:
            log.exception("stage failed", topic=message.topic, partition=message.partition, offset=message.offset)
            delivery.writes.append(await self._output.send_dead_letter(message, error))

    async def _on_tick(self, event: Any) -> Delivery | None:
        if self.failure is not None:
            return None
        delivery = Delivery(event.ack)
        try:
            await self._ticks.arrived(event.message.partition, self._clock(), delivery)
        except ProducerFailed as error:
            await self._fail(error)
            return None
        return delivery

    async def _tick(self) -> None:
        """Only sends: a timer may not touch tables."""
        if self.app.rebalancing or self.app.in_recovery:
            return
        mine: Iterable[Any] = self.app.consumer.assignment()
        numbers = sorted(tp.partition for tp in mine if tp.topic == Topic.TICK)
        await self._ticks.send(numbers)
        await self.lag.prepare()
        # No waiting from here on: what the status says is true of one moment.
        still_open = sum(runner.open_windows for runner in self.runners.values())
        unsettled = sum(settler.unsettled for topic, settler in self._settlers.items() if topic != Topic.TICK)
        self._status.say(numbers, still_open, unsettled, time.time_ns())

    def _replaced(self, tp: Any) -> bool:
        return any(runner.replaced(tp.topic, tp.partition) for runner in self._readers.get(tp.topic, ()))

    async def _on_assigned(self, *sent: Any, **_: Any) -> None:
        self.lag.reset()
        self.readiness.assigned(sent[1], time.monotonic())
        self._ticks.reset()

    async def _fail(self, error: BaseException) -> None:
        """The broker refused state or results for good, or state cannot be read: end; the next worker replays."""
        if self.failure is not None:
            return
        self.failure = error
        log.error("worker ends", error=str(error) or repr(error))
        await self.app.crash(error)

    def close(self) -> None:
        for settler in self._settlers.values():
            settler.cancel()
        self._home.leave()


def _on_batch(stage: Stage, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
    return stage.on_batch(batch, offset, now_ns)
