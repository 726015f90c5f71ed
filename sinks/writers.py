"""Ranges go to ClickHouse two at a time: an insert waits for the disk (fsync) about as long as it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from drumline.infra.clickhouse import Client
from drumline.sinks.names import KernelNames
from drumline.sinks.partition import Pending, Stage
from drumline.sinks.writer import Writer

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
        """Rows, then ledger, of each range that lacks them, and note that in its stage. Begins none once `over()`;
        whether all were written. What was begun has ended, well or not, when this returns or raises what went wrong
        first: Unavailable or Refused."""
        todo = [pending for pending in ranges if pending.stage < Stage.LEDGER_INSERTED]
        left = iter(todo)  # shared: each lane takes the next one
        running = [self._pool.submit(self._run, lane, left, over) for lane in self._lanes[: len(todo)]]
        wait(running)
        for lane in running:
            lane.result()
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
