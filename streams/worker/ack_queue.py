"""Acknowledge messages in order: wait for the output of a message, mark it as sent, then acknowledge the message.

Faust commits up to its highest gapless acknowledged offset, flushing its producer first. But that flush gives up after
0.1 s without progress, and a first commit trusts the lowest offset that it has. So an offset is acknowledged only after
the broker has all of its output, and always in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from aiokafka.errors import MessageSizeTooLargeError

from drumline.infra.runtime.stage import Stage
from drumline.schemas.batch import Batch
from drumline.streams.worker.partition_store import PartitionStore


@dataclass(slots=True)
class Output:
    """Holds a batch in flight to the broker, and the stage that has to record its arrival."""

    stage: Stage
    store: PartitionStore
    batch: Batch
    arrived: Awaitable[object]


@dataclass(slots=True)
class Delivery:
    """Holds the output of messages of one partition that were processed together.

    `acknowledge`: marks them as done in Faust, at once or with the next checkpoint (checkpoints.py).
    `buried`: offsets of those that have a dead letter as a whole. `messages`: their number.
    """

    acknowledge: Callable[[], object]
    writes: list[Awaitable[object]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    buried: set[int] = field(default_factory=set)
    messages: int = 1

    def add(self, writes: Iterable[Awaitable[object]], outputs: Iterable[Output]) -> None:
        """Add the output of one stage."""
        self.writes += writes
        self.outputs += outputs


class AckQueue:
    """Settles the deliveries of one agent in order, in a task of its own.

    Created and cancelled by `StreamWorker`. `put` blocks while `depth` deliveries are unsettled. `on_failure` is called
    once, with the error of a broker that rejected a record: the worker must end then, and its successor replays.
    `unsettled`: messages in work, `settled`: acknowledged ones so far.
    """

    def __init__(self, on_failure: Callable[[BaseException], Awaitable[None]], depth: int = 64) -> None:
        self._on_failure = on_failure
        self._depth = depth
        self._queue: asyncio.Queue[Delivery] | None = None
        self._task: asyncio.Task[None] | None = None
        self.unsettled = self.settled = 0

    async def put(self, delivery: Delivery) -> None:
        """Queue a delivery; wait while the queue is full."""
        self.unsettled += delivery.messages
        if self._queue is None:
            self._queue = asyncio.Queue(self._depth)
            self._task = asyncio.create_task(self._run(self._queue), name="settle")
        await self._queue.put(delivery)

    async def _run(self, queue: asyncio.Queue[Delivery]) -> None:
        try:
            while True:
                deliveries = [await queue.get()]
                while not queue.empty():
                    deliveries.append(queue.get_nowait())
                async for delivery in settle(deliveries):
                    self.unsettled -= delivery.messages
                    self.settled += delivery.messages
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._on_failure(error)

    def cancel(self) -> None:
        """Stop the task; unsettled messages stay unacknowledged."""
        if self._task is not None:
            self._task.cancel()


async def settle(deliveries: Sequence[Delivery]) -> AsyncIterator[Delivery]:
    """Settle deliveries together, in their order; yield each after its acknowledgement.

    1. Wait until the state of each is durable, and its results are.
    2. Mark all these results as sent: the writes of all are in flight at once.
    3. Per delivery, wait until its marks are durable, and acknowledge the message.

    All awaitables are in flight, so only the slowest of a step takes time. Raises the broker's error, after the
    deliveries before it.
    """
    awaited: list[tuple[Delivery, list[Awaitable[object]]]] = []
    failure: Exception | None = None
    for delivery in deliveries:
        try:
            for write in delivery.writes:
                await write
            for output in delivery.outputs:
                await _arrived(output)
        except Exception as error:
            failure = error
            break
        marks: list[Awaitable[object]] = []
        for output in delivery.outputs:
            output.stage.mark_sent(output.batch)
            marks += output.store.take_pending()
        awaited.append((delivery, marks))
    for delivery, marks in awaited:
        for write in marks:
            await write
        delivery.acknowledge()
        yield delivery
    if failure is not None:
        raise failure


async def _arrived(output: Output) -> None:
    """Wait for a result. One that is too large for Kafka, also the next time, is its unit's error, not the worker's."""
    try:
        await output.arrived
    except MessageSizeTooLargeError as error:
        output.stage.reject(output.batch, error)
