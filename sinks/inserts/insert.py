"""Inserts of a range into ClickHouse: kernel names it is the first to use, its rows, then its ledger rows, each as one
block under a token of its own."""

from __future__ import annotations

import time

import structlog

from drumline.infra.clickhouse.client import Client, insert_once
from drumline.infra.clickhouse.kernel_names_table import write_names
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.inserts.ledger import Ledger, ledger_block
from drumline.sinks.inserts.stored_check import LONG_AGO_S, Found, look
from drumline.sinks.ranges.partition import Pending
from drumline.sinks.tables.blocks import rows_block
from drumline.sinks.telemetry import count_insert

log = structlog.get_logger()


class Writer:
    """Both calls may be repeated: the token makes the second insert of the same range do nothing, and where it may be
    forgotten, since the range was announced long ago or by another life, ClickHouse is asked. `names`: outlives the
    writer, so that a name is written once by a process."""

    def __init__(self, client: Client, database: str, names: KernelNames) -> None:
        self._client, self._database, self._names = client, database, names

    def insert_rows(self, pending: Pending) -> int:
        """Insert the stored rows; how many. Raises TransientError or PermanentError."""
        stored = pending.stored
        if not stored:
            return 0
        if new := self._names.new(pending.table.topic, stored):
            write_names(self._client, self._database, new)
            self._names.written(new)
        target = pending.table.target
        if not pending.table.upsert and _long_ago(pending):  # rows that replace each other may come twice
            found = look(
                self._client,
                f"{self._database}.{target}",
                "_topic_partition = {place:String} AND _offset BETWEEN {first:UInt64} AND {last:UInt64}",
                {"place": pending.range.topic_partition, "first": pending.range.first, "last": pending.range.last},
            )
            if _done(found, sum(entry.rows for entry in stored), target, pending):
                return 0
        rows, block = rows_block(
            pending.table,
            pending.range.topic_partition,
            [entry.batch for entry in stored if entry.batch is not None],
            [entry.record.offset for entry in stored],
            [entry.record.timestamp_ms for entry in stored],
        )
        self._insert(target, [column.name for column in pending.table.columns], block, pending.range.token, rows)
        return rows

    def insert_ledger(self, pending: Pending) -> None:
        """Insert what became of each record, if compaction left any. Raises TransientError or PermanentError."""
        records = len(pending.entries)
        if not records:
            return
        if _long_ago(pending):
            found = Ledger(self._client, self._database).has(pending.table.topic.value, pending.range)
            if _done(found, records, "ledger", pending):
                return
        self._insert("ledger", None, ledger_block(pending.range, pending.entries), pending.range.token, records)

    def _insert(self, table: str, columns: list[str] | None, block: bytes, token: str, rows: int) -> None:
        started = time.perf_counter()
        insert_once(self._client, f"{self._database}.{table}", block, token, column_names=columns)
        count_insert(table, rows, time.perf_counter() - started)


def _long_ago(pending: Pending) -> bool:
    return time.monotonic() - pending.announced > LONG_AGO_S


def _done(found: Found, wanted: int, table: str, pending: Pending) -> bool:
    done = found.done(wanted)
    if done:
        topic = pending.table.topic.value
        log.info("a range was inserted long ago", table=table, topic=topic, token=pending.range.token)
    return done
