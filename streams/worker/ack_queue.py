"""Acknowledge messages in order: wait for the output of a message, mark it as sent, then acknowledge the message.

Faust commits up to its highest gapless acknowledged offset, flushing its producer first. But that flush gives up after
0.1 s without progress, and a first commit trusts the lowest offset that it has. So an offset is acknowledged only after
the broker has all of its output, and always in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from drumline.schemas.batch import Batch
from drumline.streams.core.stage import Stage
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
    """Holds the output of one message. `acknowledge` marks the message as done in Faust."""

    acknowledge: Callable[[], object]
    writes: list[Awaitable[object]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def add(self, writes: Iterable[Awaitable[object]], outputs: Iterable[Output]) -> None:
        """Add the output of one stage."""
        self.writes += writes
        self.outputs += outputs


class AckQueue:
    """Settles the deliveries of one agent in order, in a task of its own.

    Created and cancelled by `StreamWorker`. `put` blocks while `depth` messages are unsettled. `on_failure` is called
    once, with the error of a broker that rejected a record: the worker must end then, and its successor replays.
    """

    def __init__(self, on_failure: Callable[[BaseException], Awaitable[None]], depth: int = 64) -> None:
        self._on_failure = on_failure
        self._depth = depth
        self._queue: asyncio.Queue[Delivery] | None = None
        self._task: asyncio.Task[None] | None = None
        self.unsettled = 0

    async def put(self, delivery: Delivery) -> None:
        """Queue a delivery; wait while the queue is full."""
        self.unsettled += 1
        if self._queue is None:
            self._queue = asyncio.Queue(self._depth)
            self._task = asyncio.create_task(self._run(self._queue), name="settle")
        await self._queue.put(delivery)

    async def _run(self, queue: asyncio.Queue[Delivery]) -> None:
        try:
            while True:
                await settle(await queue.get())
                self.unsettled -= 1
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            await self._on_failure(error)

    def cancel(self) -> None:
        """Stop the task; unsettled messages stay unacknowledged."""
        if self._task is not None:
            self._task.cancel()


async def settle(delivery: Delivery) -> None:
    """Settle one delivery.

    1. Wait until the state is durable.
    2. Wait until each result is durable, mark it as sent, and wait until that is durable.
    3. Acknowledge the message.

    Raises the broker's error.
    """
    for write in delivery.writes:
        await write
    for output in delivery.outputs:
        await output.arrived
        output.stage.mark_sent(output.batch)
        for write in output.store.take_pending():
            await write
    delivery.acknowledge()
