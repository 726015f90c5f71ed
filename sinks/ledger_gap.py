"""Stop where the ledger lacks records that a sink has committed as stored, or read them again once that is accepted.

ClickHouse then is another server than the group's, a replica that lags behind the one that was inserted into, or one
that was restored or emptied. Duplicates are recognised by the ledger, so inserts there would double what came twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

import structlog

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.config.settings import Settings
from drumline.sinks.errors import LostRecords, TransientKafkaError
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.record_times import record_times
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.stored_tail import log_start

log = structlog.get_logger()
DAY_MS = 86_400_000
#: A partition, and the offset at which the ledger ends; 0 = it has nothing of the log.
LedgerEnd = tuple[PartitionState, int]


def is_behind(state: PartitionState, stored: int, *, accept_loss: bool) -> bool:
    """Return True if a sink has committed records as stored that lie behind `stored`, where the ledger ends.

    A log that continues after an accepted loss has nothing stored at first. A compacted topic may have no record left
    between the two: that stops no sink, unless the ledger has nothing at all.
    """
    if state.compacted and stored and not accept_loss:
        return False
    return max(stored, log_start(state.topic_id)) < state.stored_before


def resolve_gaps(
    settings: Settings, kafka: SinkConsumer, client: Client, behind: Sequence[LedgerEnd]
) -> list[LedgerEnd]:
    """Return the partitions to read again and the offset of each to start at, where `accept_loss` is given.

    What Kafka has no more, or retention has removed from the ledger, is no gap. Fatal: LostRecords. Retry later:
    TransientKafkaError, TransientError.
    """
    lows = {id(state): _low(kafka, state) for state, _ in behind}
    days = settings.clickhouse.retention.ledger
    kept_since_ms = time.time_ns() // 1_000_000 - days * DAY_MS if days else 0
    left = [(state, stored) for state, stored in behind if lows[id(state)] < state.stored_before]
    last = {(state.table.topic.value, state.partition): state.stored_before - 1 for state, _ in left}
    with closing(kafka.reader()) as reader:
        times = record_times(reader, last) if last else {}
    gaps = [
        (state, stored)
        for state, stored in left
        if times.get((state.table.topic.value, state.partition), -1) >= max(kept_since_ms, 0)
    ]
    if gaps and not kafka.accept_loss:
        raise LostRecords(_message(settings, gaps))
    again = []
    for state, stored in gaps:
        first = max(stored, lows[id(state)], log_start(state.topic_id))
        _check_no_rows(settings, client, state, first)
        log.error(
            "ClickHouse lacks records that were committed as stored; reading again those that Kafka has",
            topic=state.table.topic.value, partition=state.partition, first=first, committed=state.stored_before,
            lost=first - stored,
        )  # fmt: skip
        again.append((state, first))
    return again


def _low(kafka: SinkConsumer, state: PartitionState) -> int:
    low, _ = kafka.logs.bounds(state)
    if low < 0:
        raise TransientKafkaError(
            f"{state.table.topic.value} partition {state.partition}: no broker states the bounds of its log"
        )
    return low


def _message(settings: Settings, gaps: Sequence[LedgerEnd]) -> str:
    state, stored = gaps[0]
    more = f" (and {len(gaps) - 1} partitions more)" if len(gaps) > 1 else ""
    return (
        f"{state.table.topic.value} partition {state.partition}{more}: group {settings.sink.group} has committed all "
        f"records before offset {state.stored_before} as stored, but the ledger at {settings.clickhouse_url} ends at "
        f"{stored}. It is another server than this group's, a replica that lags, or was restored or emptied; to insert "
        "there would store records twice. Wait until it has caught up, or name the right server. "
        "`drumline sink --accept-loss` reads again what Kafka has, `drumline backfill` copies what it has no more"
    )


def _check_no_rows(settings: Settings, client: Client, state: PartitionState, first: int) -> None:
    """Check that the table has no rows of records that are read again. Fatal: LostRecords."""
    place = OffsetRange(state.topic_id, state.partition, first, first).topic_partition
    name = f"{settings.clickhouse.database}.{state.table.target}"
    where = "_topic_partition = {place:String} AND _offset >= {first:UInt64}"
    if rows(client, f"SELECT 1 FROM {name} WHERE {where} LIMIT 1", {"place": place, "first": first}):
        raise LostRecords(
            f"{name} has rows of records that the ledger lacks (_topic_partition {place}, from _offset {first}): a "
            "replica that lags, or a backup of tables at different times. Wait, or restore all tables from one time. "
            "If the ledger's retention was shorter once, it lacks nothing: stop the sink and set the offset of group "
            f"{settings.sink.group} to {state.stored_before} by hand"
        )
