"""Settle messages in order: wait for what a message caused, mark what was sent, then acknowledge the message.

Faust commits up to its highest gapless acknowledged offset, flushing its producer first, but that flush gives up
after 0.1 s without progress, and a first commit trusts the lowest offset it sees. So an offset is acknowledged here
only after the broker has everything that came of it, and always in order.
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
    """A batch on its way to the broker, and who wants to know that it has arrived."""

    stage: Stage
    store: PartitionStore
    batch: Batch
    arrived: Awaitable[object]


@dataclass(slots=True)
class Delivery:
    """All that one message caused. `acknowledge` tells Faust that the message is done."""

    acknowledge: Callable[[], object]
    writes: list[Awaitable[object]] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def add(self, writes: Iterable[Awaitable[object]], outputs: Iterable[Output]) -> None:
        """What one stage made of it."""
        self.writes += writes
        self.outputs += outputs


class Settler:
    """One per agent. `put` waits while `depth` messages are unsettled; `on_failure` is called once, with the error
    of a broker that refused something: the worker must end then, its successor replays."""

    def __init__(self, on_failure: Callable[[BaseException], Awaitable[None]], depth: int = 64) -> None:
        self._on_failure = on_failure
        self._depth = depth
        self._queue: asyncio.Queue[Delivery] | None = None
        self._task: asyncio.Task[None] | None = None
        self.unsettled = 0

    async def put(self, delivery: Delivery) -> None:
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
        if self._task is not None:
            self._task.cancel()


async def settle(delivery: Delivery) -> None:
    """state durable -> results durable -> marked as sent, durable -> acknowledged. Raises what the broker answered."""
    for write in delivery.writes:
        await write
    for output in delivery.outputs:
        await output.arrived
        output.stage.mark_sent(output.batch)
        for write in output.store.take_pending():
            await write
    delivery.acknowledge()
