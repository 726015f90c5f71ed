"""Insert one range into ClickHouse: new kernel names, rows, ledger rows; each is one block under its own token."""

from __future__ import annotations

import time

import structlog

from drumline.infra.clickhouse.client import Client, insert_once
from drumline.infra.clickhouse.kernel_names_table import write_names
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.inserts.ledger import Ledger, ledger_block
from drumline.sinks.inserts.stored_check import LONG_AGO_S, StoredRows, find_stored
from drumline.sinks.ranges.pending_range import PendingRange
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.telemetry import count_insert

log = structlog.get_logger()


class RangeWriter:
    """Inserts rows and ledger rows of ranges through one connection.

    Both calls may be repeated: the token makes a second insert of the same range do nothing. Where the token may be
    forgotten, because the intent was committed long ago or by an earlier process, it queries ClickHouse first. `names`
    outlives the writer, so that a process writes a name once.
    """

    def __init__(self, client: Client, database: str, names: KernelNames) -> None:
        self._client, self._database, self._names = client, database, names

    def insert_rows(self, pending: PendingRange) -> int:
        """Insert the stored rows and return their number; 0 if there are none or they are stored already.

        Retry later: TransientError. Fatal: PermanentError.
        """
        entries = pending.stored
        if not entries:
            return 0
        target = pending.table.target
        if not pending.table.upsert and _long_ago(pending):  # rows that replace each other may be inserted twice
            stored = find_rows(self._client, self._database, pending)
            if _done(stored, sum(entry.rows for entry in entries), target, pending):
                return 0
        rows, block = rows_block(
            pending.table,
            pending.range.topic_partition,
            [entry.batch for entry in entries if entry.batch is not None],
            [entry.record.offset for entry in entries],
            [entry.record.timestamp_ms for entry in entries],
        )
        pending.block_bytes = len(block)
        if new := self._names.new(pending.table.topic, entries):
            write_names(self._client, self._database, new)
            self._names.mark_written(new)
        self._insert(target, [column.name for column in pending.table.columns], block, pending.range.token, rows)
        return rows

    def insert_ledger(self, pending: PendingRange) -> None:
        """Insert the disposition of each record, if compaction left any.

        Retry later: TransientError. Fatal: PermanentError.
        """
        records = len(pending.entries)
        if not records:
            return
        if _long_ago(pending):
            stored = Ledger(self._client, self._database).find_range(pending.table.topic.value, pending.range)
            if _done(stored, records, "ledger", pending):
                return
        self._insert("ledger", None, ledger_block(pending.range, pending.entries), pending.range.token, records)

    def _insert(self, table: str, columns: list[str] | None, block: bytes, token: str, rows: int) -> None:
        started = time.perf_counter()
        insert_once(self._client, f"{self._database}.{table}", block, token, column_names=columns)
        count_insert(table, rows, time.perf_counter() - started)


def find_rows(client: Client, database: str, pending: PendingRange) -> StoredRows:
    """Return the rows of the range that its table has. Retry later: TransientError. Fatal: PermanentError."""
    return find_stored(
        client,
        f"{database}.{pending.table.target}",
        "_topic_partition = {place:String} AND _offset BETWEEN {first:UInt64} AND {last:UInt64}",
        {"place": pending.range.topic_partition, "first": pending.range.first, "last": pending.range.last},
    )


def _long_ago(pending: PendingRange) -> bool:
    return time.monotonic() - pending.intent_committed_at > LONG_AGO_S


def _done(stored: StoredRows, wanted: int, table: str, pending: PendingRange) -> bool:
    done = stored.done(wanted)
    if done:
        topic = pending.table.topic.value
        log.info("range was inserted long ago", table=table, topic=topic, token=pending.range.token)
    return done
