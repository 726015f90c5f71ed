"""Write the state of stages every few seconds, and acknowledge records when the state that they changed is durable.

Between two checkpoints the source topic is the log: after a kill, records are read again from the last checkpoint on.
So a value that each record changes is written once a checkpoint instead of once a record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from drumline.infra.runtime import malloc as heap
from drumline.streams.worker.partition_store import PartitionStore

#: Between two checkpoints, s. A pane is filled for 5 s, so it is written about twice; a restart repeats as much work.
CHECKPOINT_S = 5.0
#: Changes a second from which on the next checkpoint comes later, by LONGEST_S at most: a change costs some 40 us, and
#: of a large job, whose agents join records for 4 s, each record would be written.
CHANGES_PER_S, LONGEST_S = 1_000, 10.0
#: After so long without a record, a checkpoint does not wait; s.
IDLE_S = 1.0
#: Records that wait at most: without its bytes a record takes 0.5 kB. Above what a worker handles in 5 s, or the values
#: of a large job would be written for each record.
MOST_HELD = 20_000
#: Changes that are written together at most: between two pieces the event loop answers Kafka.
PIECE = 1_000
POLL_S = 0.1
#: Free pages of the heap return to the system so often after a large checkpoint, s: each evaluation of a window of a
#: large job takes and frees some 200 MB.
TRIM_S = 2.0


class Runner(Protocol):
    """Describes a stage's runner."""

    def checkpointed(self, partition: int | None = None) -> list[PartitionStore]:
        """Return the stores whose changes wait for checkpoints: of all partitions, or of one."""


class Checkpoints:
    """Writes the checkpoints of all stages of one worker, in a task of its own.

    Created and cancelled by `StreamWorker`; used in its event loop. `app`: the Faust app. `check_halt`: called before
    changes are written. `on_failure`: called once, with the error of a broker that rejected a change: the worker must
    end then.
    """

    def __init__(
        self,
        app: Any,
        runners: Collection[Runner],
        check_halt: Callable[[], None],
        on_failure: Callable[[BaseException], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._runners = app, runners
        self._check_halt, self._on_failure, self._clock = check_halt, on_failure, clock
        self._held: list[tuple[Sequence[Any], Sequence[PartitionStore]]] = []  # messages, stores that they changed
        self._unsettled = self._in_flight = 0  # numbers of messages
        self._failed = False
        self._began = self._last = clock()
        self._every_s = CHECKPOINT_S
        self._is_large, self._trimmed = False, clock()
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Return the number of records that wait for a checkpoint."""
        return self._unsettled + self._in_flight

    @property
    def waiting(self) -> int:
        """Return the same, and 1 if only changes wait, as ticks make them."""
        return self.held or int(any(store.has_changes for store in self._stores()))

    def start(self) -> None:
        """Start the task, unless it runs."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="checkpoints")

    def acknowledger(self, messages: Sequence[Any], readers: Iterable[Runner]) -> Callable[[], object]:
        """Return what acknowledges records of one partition: at once, or with the next checkpoint of the stages that
        read them.
        """
        stores = [store for runner in readers for store in runner.checkpointed(messages[0].partition)]
        return partial(self._hold, messages, stores) if stores else partial(self._settle, messages, ())

    def _hold(self, messages: Sequence[Any], stores: Sequence[PartitionStore]) -> None:
        for message in messages:
            message.key = message.value = None  # it was processed
        self._held.append((messages, stores))
        self._unsettled += len(messages)
        self._last = self._clock()

    async def below_limit(self) -> None:
        """Wait until one more record may be held."""
        while self.held >= MOST_HELD:
            await asyncio.sleep(POLL_S / 10)

    async def write(self) -> None:
        """Write all changes as they are now, then acknowledge the records held by now. Raises the broker's error, and
        writes nothing from then on: a later change may not follow those that are missing.
        """
        async with self._lock:  # an older value must not follow a newer one
            if self._failed:
                return
            self._check_halt()
            held, self._held, self._began = self._held, [], self._clock()
            taken = [(store, store.take_checkpoint()) for store in self._stores()]
            number = sum(len(changes) for _, changes in taken)
            self._every_s = max(CHECKPOINT_S, min(number / CHANGES_PER_S, LONGEST_S))
            self._in_flight, self._unsettled = self._unsettled, 0
            try:
                for store, changes in taken:
                    at = 0
                    while at < len(changes) and not store.closed:
                        count, sent = await store.write(changes[at : at + PIECE])
                        for arrived in sent:
                            await arrived
                        at += count
            except BaseException:
                self._failed = True
                raise
            self._check_halt()
            for messages, stores in held:
                self._settle(messages, stores)
            self._in_flight = 0
            self._is_large = number >= PIECE

    def _settle(self, messages: Sequence[Any], stores: Sequence[PartitionStore]) -> None:
        """Acknowledge records, unless their partition was lost: then they are read again, by this worker or another."""
        is_lost = any(store.closed for store in stores)
        for message in messages:
            if is_lost:
                self._app.consumer._unacked_messages.discard(message)  # which a rebalance would wait for
            else:
                message.ack(self._app.consumer)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.poll()

    async def poll(self) -> None:
        """Write a checkpoint if one is due."""
        try:
            if self.waiting and self._is_due(self._clock()):
                await self.write()
        except Exception as error:
            await self._on_failure(error)
        if self._is_large and self._clock() - self._trimmed >= TRIM_S:
            heap.trim()
            self._trimmed, self._is_large = self._clock(), self.waiting > 0

    def _is_due(self, now: float) -> bool:
        """Return whether a checkpoint may wait no longer: where partitions move or the worker ends, Faust waits for the
        records in work.
        """
        is_leaving = self._app.rebalancing or self._app.should_stop
        is_idle = now - self._last >= IDLE_S
        return is_leaving or is_idle or self._unsettled >= MOST_HELD or now - self._began >= self._every_s

    def _stores(self) -> list[PartitionStore]:
        return [store for runner in self._runners for store in runner.checkpointed()]

    def cancel(self) -> None:
        """Stop the task; records that wait stay unacknowledged."""
        if self._task is not None:
            self._task.cancel()
