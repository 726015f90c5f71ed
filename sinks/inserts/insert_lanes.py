"""Ranges go to ClickHouse two at a time: an insert waits for the disk (fsync) about as long as it computes.

Nothing is written for a partition that is no longer held: whoever calls `write` waits for both lanes, and partitions
are given up only when it polls Kafka again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import structlog

from drumline.infra.clickhouse.client import Client, TransientError
from drumline.sinks.inserts.insert import Writer
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.ranges.partition import Pending, Stage

log = structlog.get_logger()
#: Inserts under way at a time. Two keep a disk and two cores busy; ClickHouse wants few and large inserts.
LANES = 2


class _Lane:
    """One connection, used by one thread at a time. `rows`: inserted since it was made."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.rows = 0


class Writers:
    """`connect`: makes a client. `names`: see Writer. Ranges are of different partitions, all announced, so their order
    among each other does not matter: whoever finds some of them stored finishes each by itself."""

    def __init__(self, connect: Callable[[], Client], database: str, names: KernelNames) -> None:
        self._connect, self._database, self._names = connect, database, names
        self._lanes = [_Lane() for _ in range(LANES)]
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="insert")

    @property
    def rows(self) -> int:
        """Inserted so far."""
        return sum(lane.rows for lane in self._lanes)

    def write(self, ranges: Iterable[Pending], over: Callable[[], bool]) -> bool:
        """Rows, then ledger, of each range that lacks them, and note that in its stage; whether all have both now.

        Each lane does one range, and others until `over()`; where one fails, the other goes on. When this returns or
        raises, nothing is under way any more. Raises what the lanes raised: PermanentError (or anything else that
        no waiting will mend) before TransientError; a second one is logged.
        """
        todo = [pending for pending in ranges if pending.stage < Stage.LEDGER_INSERTED]
        left = iter(todo)  # shared: each lane takes the next one
        running: list[Future[None]] = []
        try:
            for lane in self._lanes[: len(todo)]:
                running.append(self._pool.submit(self._run, lane, left, over))
        finally:
            wait(running)
        failed = [error for done in running if (error := done.exception()) is not None]
        failed.sort(key=lambda error: isinstance(error, TransientError))
        for error in failed[1:]:
            log.warning("a second insert failed too", error=str(error))
        if failed:
            raise failed[0]
        return all(pending.stage >= Stage.LEDGER_INSERTED for pending in todo)

    def _run(self, lane: _Lane, left: Iterator[Pending], over: Callable[[], bool]) -> None:
        for pending in left:
            if lane.client is None:
                lane.client = self._connect()
            writer = Writer(lane.client, self._database, self._names)
            if pending.stage < Stage.ROWS_INSERTED:  # one block under the range's token
                lane.rows += writer.insert_rows(pending)
                pending.stage = Stage.ROWS_INSERTED
            writer.insert_ledger(pending)  # what became of each record, under the same token
            pending.stage = Stage.LEDGER_INSERTED
            if over():
                return

    def disconnect(self) -> None:
        """Connections are made anew with the next range."""
        for lane in self._lanes:
            if lane.client is not None:
                lane.client.close()
                lane.client = None

    def close(self) -> None:
        """No range can be written any more."""
        self._pool.shutdown()
        self.disconnect()
