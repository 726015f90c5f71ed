"""One Faust app from stages: an agent per topic, a table per stage, ticks, dead letters. What stages do is theirs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from drumline.infra import metrics
from drumline.infra.health import Health
from drumline.infra.settings import Settings
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.errors import BadRecord, RegistryUnavailable
from drumline.schemas.topics import Topic, dlq
from drumline.streams.backpressure import keep_asking
from drumline.streams.deadletter import Origin, headers
from drumline.streams.decoder import Decoder
from drumline.streams.faust_settings import data_dir, faust_settings
from drumline.streams.keys import record_key
from drumline.streams.patience import be_patient
from drumline.streams.recovery import guard_recovery
from drumline.streams.refusal import refused
from drumline.streams.runner import StageRunner
from drumline.streams.settle import Delivery, Output, Settler
from drumline.streams.stage import Stage
from drumline.streams.status import StatusFile
from drumline.streams.store import PartitionStore
from drumline.streams.telemetry import Readiness, count_input, count_output, notice_commits
from drumline.streams.tick import TICK_S, Lag, Pulse

log = structlog.get_logger()
#: Changes of state that wait for the producer before agents pause. Faust's 100 is a second of quiet life.
MAX_UNSENT = 2000


class Disowned(Exception):
    """The record's partition is another worker's now."""


class NotTaken(RuntimeError):
    """The producer takes nothing more: Kafka has been away for too long, or refuses us."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """A stage, the topics it reads, and what it is called in logs and in its changelog's name."""

    name: str
    inputs: tuple[str, ...]
    build: Callable[[PartitionStore], Stage]


class StreamWorker:
    """`app` is the Faust app. `failure` is the error that ended it, if one did. `readiness.observe` wants to be called
    by whoever runs the app."""

    def __init__(
        self,
        settings: Settings,
        wirings: Sequence[Wiring],
        partitions: int,
        codec: Codec,
        health: Health | None = None,
    ) -> None:
        import faust

        self.failure: BaseException | None = None
        self._codec, self._clock, self._settings = codec, time.time_ns, settings
        self._ending: asyncio.Future[None] | None = None
        self._failing: set[tuple[str, int]] = set()  # (stage, partition) whose last tick failed
        be_patient()
        self.app: Any = faust.App(**faust_settings(settings, partitions))
        self.runners = {w.name: StageRunner(self.app, w.name, w.build, self._send, self._fail) for w in wirings}
        self._readers: dict[str, list[StageRunner]] = {}
        for wiring in wirings:
            for topic in wiring.inputs:
                self._readers.setdefault(topic, []).append(self.runners[wiring.name])
        self.lag = Lag(self.app, self._readers)
        self._settlers: dict[str, Settler] = {}
        self._partitions, self._status = partitions, StatusFile(data_dir(settings) / "status.json")
        self._pulses: dict[int, Pulse] = {}
        for topic in self._readers:
            self._agent(topic, self._on_record)
        self._agent(Topic.TICK, self._on_tick)
        self.app.timer(TICK_S)(self._tick)
        self.app.producer.buffer.max_messages = MAX_UNSENT
        self.app.on_partitions_assigned.connect(self._on_assigned, weak=False)
        guard_recovery(self.app)
        keep_asking(self.app)
        self._health = health = health or Health()
        self._decoder = Decoder(codec, health, lambda: self.app.rebalancing or self.app.should_stop)
        self.readiness = Readiness(self.app, health)
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
        except (NotTaken, RegistryUnavailable) as error:
            await self._fail(error)
            return None
        self.lag.handled(message.tp, message.offset)
        metrics.STREAM_RECORDS.labels(message.topic).inc()
        return delivery

    async def _handle(self, message: Any, delivery: Delivery) -> None:
        """Raises Disowned, NotTaken, RegistryUnavailable."""
        try:
            batch = await self._decoder.decode(message.topic, message.value)
            count_input(batch, self._clock())
            for runner in self._readers[message.topic]:
                if runner.stage(message.partition) is None:
                    raise Disowned
                work = partial(_on_batch, batch=batch, offset=message.offset, now_ns=self._clock())
                await self._apply(runner, message.partition, work, delivery)
        except BadRecord as error:
            await self._dead_letter(message, error, delivery)
        except (Disowned, NotTaken, RegistryUnavailable):
            raise
        except Exception as error:
            log.exception("stage failed", topic=message.topic, partition=message.partition, offset=message.offset)
            await self._dead_letter(message, error, delivery)

    async def _on_tick(self, event: Any) -> Delivery | None:
        """Let every stage of the partition close what has been silent. Ticks that queued up count as one."""
        if self.failure is not None:
            return None
        delivery, number, now_ns = Delivery(event.ack), event.message.partition, self._clock()
        pulse = self._pulses.setdefault(number, Pulse(round(self._settings.stream.idle_s * 1e9)))
        if not pulse.due(now_ns):
            return delivery
        self.readiness.heard(time.monotonic())
        caught_up = pulse.beat(now_ns) and self.lag.records() == 0
        for runner in self.runners.values():
            try:
                if runner.stage(number) is not None:
                    work = partial(_on_tick, now_ns=now_ns, caught_up=caught_up)
                    await self._apply(runner, number, work, delivery)
                    self._ticks_fail(runner.name, number, False)
            except NotTaken as error:
                await self._fail(error)
                return None
            except Exception:  # a defect of ours: no record is at fault, and the other stages go on
                log.exception("stage failed on a tick", stage=runner.name, partition=number)
                metrics.STREAM_TICKS_FAILED.labels(runner.name).inc()
                self._ticks_fail(runner.name, number, True)
        return delivery

    def _ticks_fail(self, stage: str, number: int, failed: bool) -> None:
        """Not ready while any stage of a partition that is ours fails."""
        (self._failing.add if failed else self._failing.discard)((stage, number))
        stages = ", ".join(sorted({name for name, _ in self._failing}))
        self._health.waits("tick", f"fails on ticks, see the log: {stages}" if stages else "")

    async def _apply(
        self, runner: StageRunner, number: int, work: Callable[[Stage], list[Batch]], delivery: Delivery
    ) -> None:
        writes, outputs = await runner.apply(number, work)
        delivery.writes += writes
        delivery.outputs += outputs

    async def _send(self, batch: Batch) -> Awaitable[object]:
        value = self._codec.encode(batch)
        arrived = await self._produce(batch.topic, record_key(batch), value)
        count_output(batch)
        return arrived

    async def _produce(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Any = None
    ) -> Awaitable[object]:
        """Hand over to the producer, which keeps it until the broker has it; what to await then. Raises NotTaken."""
        try:
            arrived: Awaitable[object] = await self.app.producer.send(topic, key, value, None, None, headers)
        except Exception as error:
            raise NotTaken(f"{topic}: {error!r}") from error
        return arrived

    async def _dead_letter(self, message: Any, error: Exception, delivery: Delivery) -> None:
        metrics.STREAM_DEAD_LETTERS.labels(message.topic, type(error).__name__).inc()
        origin = Origin(message.topic, message.partition, message.offset)
        if isinstance(error, BadRecord):
            log.warning("dead letter", reason=str(error), partition=origin.partition, offset=origin.offset)
        letter_headers = headers(origin, error, self.app.conf.id)
        delivery.writes.append(await self._produce(dlq(message.topic), message.key, message.value, letter_headers))

    async def _tick(self) -> None:
        """Only sends: a timer may not touch tables."""
        if self.app.rebalancing or self.app.in_recovery:
            return
        mine: Iterable[Any] = self.app.consumer.assignment()
        numbers = sorted(tp.partition for tp in mine if tp.topic == Topic.TICK)
        for number in numbers:
            sent = await self.app.producer.send(Topic.TICK, None, b"", number, None, None)
            asyncio.ensure_future(sent).add_done_callback(self._tick_sent)
        await self._say(numbers)

    def _tick_sent(self, sent: asyncio.Future[object]) -> None:
        """Nobody misses a tick, unless none will ever be allowed."""
        error = None if sent.cancelled() else sent.exception()
        if error is not None and self.failure is None and refused(self._settings, error):
            self._ending = asyncio.ensure_future(self._fail(error))

    async def _say(self, partitions: list[int]) -> None:
        """Status file, for infra/drain.py."""
        await self.lag.prepare()
        positions = {f"{tp.topic}:{tp.partition}": position for tp, position in self.lag.positions().items()}
        status: dict[str, Any] = {
            "app": self.app.conf.id,
            "partitions": partitions,
            "of": self._partitions,
            "open": sum(runner.open_windows for runner in self.runners.values()),
            "unsettled": sum(settler.unsettled for topic, settler in self._settlers.items() if topic != Topic.TICK),
            "handled": self.lag.count,
            "lag": self.lag.records(),
            "positions": positions,
            "time_ns": self._clock(),
        }
        if status["lag"] is not None:
            metrics.STREAM_LAG.set(status["lag"])
        metrics.STREAM_OPEN.set(status["open"])
        metrics.STREAM_UNSETTLED.set(status["unsettled"])
        self._status.write(status)

    async def _on_assigned(self, *sent: Any, **_: Any) -> None:
        self.lag.reset()
        self.readiness.assigned(sent[1], time.monotonic())
        self._pulses.clear()
        self._failing.clear()  # of partitions that went, nothing is heard again
        self._health.waits("tick", "")

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


def _on_batch(stage: Stage, batch: Batch, offset: int, now_ns: int) -> list[Batch]:
    return stage.on_batch(batch, offset, now_ns)


def _on_tick(stage: Stage, now_ns: int, caught_up: bool) -> list[Batch]:
    return stage.on_tick(now_ns, caught_up)


__all__ = ["Output", "StreamWorker", "Wiring"]
