"""Inserts of a range into ClickHouse: kernel names it is the first to use, its rows, then its ledger rows, each as one
block under a token of its own."""

from __future__ import annotations

import time

from drumline.infra.clickhouse import Client, insert_once
from drumline.infra.kernel_names_table import write_names
from drumline.sinks.ledger import ledger_block
from drumline.sinks.names import KernelNames
from drumline.sinks.partition import Pending
from drumline.sinks.rows import rows_block
from drumline.sinks.telemetry import count_insert


class Writer:
    """Both calls may be repeated: the token makes the second insert of the same range do nothing. `names`: outlives the
    writer, so that a name is written once by a process."""

    def __init__(self, client: Client, database: str, names: KernelNames) -> None:
        self._client, self._database, self._names = client, database, names

    def insert_rows(self, pending: Pending) -> int:
        """Insert the stored rows; how many. Raises Unavailable or Refused."""
        stored = pending.stored
        if not stored:
            return 0
        if new := self._names.new(pending.table.topic, stored):
            write_names(self._client, self._database, new)
            self._names.written(new)
        rows, block = rows_block(
            pending.table,
            pending.range.topic_partition,
            [entry.batch for entry in stored if entry.batch is not None],
            [entry.record.offset for entry in stored],
            [entry.record.timestamp_ms for entry in stored],
        )
        self._insert(
            pending.table.target, [column.name for column in pending.table.columns], block, pending.range.token, rows
        )
        return rows

    def insert_ledger(self, pending: Pending) -> None:
        """Insert what became of each record. Raises Unavailable or Refused."""
        block = ledger_block(pending.range, pending.entries)
        self._insert("ledger", None, block, pending.range.token, len(pending.entries))

    def _insert(self, table: str, columns: list[str] | None, block: bytes, token: str, rows: int) -> None:
        started = time.perf_counter()
        insert_once(self._client, f"{self._database}.{table}", block, token, column_names=columns)
        count_insert(table, rows, time.perf_counter() - started)
