"""Insert two ranges at a time: an insert waits for the disk (fsync) about as long as it computes.

Nothing is written for a partition that is no longer held: the caller of `write` waits for both lanes, and partitions
are revoked only when it polls Kafka again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import structlog

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, TransientError
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.ranges.failed_insert import VALUES
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage

log = structlog.get_logger()
#: Inserts in flight at a time. Two keep a disk and two cores busy; ClickHouse works best with few and large inserts.
LANES = 2


class _Lane:
    """Holds one connection, used by one thread at a time. `rows`: inserted since the lane was created."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.rows = 0


class InsertLanes:
    """Inserts ranges in LANES threads, one connection each.

    Owned by `CommitCycle`, which closes it. `connect`: creates a client. `names`: see RangeWriter. Ranges are of
    different partitions and their intents are committed, so their order does not matter: a successor finishes each by
    itself. `rejected`: the ranges of the last `write` that ClickHouse answered with an error, which concerns them only.
    """

    def __init__(self, connect: Callable[[], Client], database: str, names: KernelNames) -> None:
        self._connect, self._database, self._names = connect, database, names
        self.rejected: list[tuple[PendingRange, ClickHouseFailed]] = []
        self._lanes = [_Lane() for _ in range(LANES)]
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="insert")

    @property
    def rows(self) -> int:
        """Return the number of rows inserted so far."""
        return sum(lane.rows for lane in self._lanes)

    def write(self, ranges: Iterable[PendingRange], over: Callable[[], bool]) -> bool:
        """Insert rows, then ledger rows, of each range that lacks them; return True if none is left.

        Sets each range's stage, or adds it to `rejected`. Each lane takes one range, and further ones until `over()`;
        if one fails, the other continues. Blocks until nothing is in flight. Raises what the lanes raised: fatal errors
        before TransientError (retry later); a second one is logged.
        """
        todo = [pending for pending in ranges if pending.stage < RangeStage.LEDGER_INSERTED]
        self.rejected = []
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
        done = sum(pending.stage >= RangeStage.LEDGER_INSERTED for pending in todo)
        return done + len(self.rejected) == len(todo)

    def _run(self, lane: _Lane, left: Iterator[PendingRange], over: Callable[[], bool]) -> None:
        for pending in left:
            if lane.client is None:
                lane.client = self._connect()
            try:
                self._write(lane, RangeWriter(lane.client, self._database, self._names), pending)
            except ClickHouseFailed as error:
                if not error.code or not (isinstance(error, TransientError) or error.code in VALUES):
                    raise
                self.rejected.append((pending, error))
            if over():
                return

    def _write(self, lane: _Lane, writer: RangeWriter, pending: PendingRange) -> None:
        if pending.stage < RangeStage.ROWS_INSERTED:  # one block under the range's token
            try:
                lane.rows += writer.insert_rows(pending)
            except ClickHouseFailed as error:
                pending.reject(error.code, time.monotonic())
                raise
            pending.stage = RangeStage.ROWS_INSERTED
        writer.insert_ledger(pending)  # the disposition of each record, under the same token
        pending.stage = RangeStage.LEDGER_INSERTED

    def disconnect(self) -> None:
        """Close the connections; the next range opens new ones."""
        for lane in self._lanes:
            if lane.client is not None:
                lane.client.close()
                lane.client = None

    def close(self) -> None:
        """Stop the threads; no range can be written afterwards."""
        self._pool.shutdown()
        self.disconnect()
