"""Find, and count, what is older than its table keeps rows when the sink takes it: the sink was behind for longer.

The server's retention would delete such rows as they come in, so they are not inserted. The ledger has their records.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from drumline.infra.clickhouse.client import Client, rows
from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.infra.telemetry import metrics
from drumline.schemas.topics import COMPACTED_TOPICS, DAY_MS
from drumline.sinks.ranges.disposition import Disposition
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.pending_range import PendingRange

log = structlog.get_logger()


def expired_until_ms(state: PartitionState, retention: RetentionSettings, client: Callable[[], Client]) -> int:
    """Return up to which time in Kafka the collected records are older than their table keeps rows.

    In ms since the epoch; 0 = none is, or the table keeps rows for ever. It is the server's clock that deletes, and a
    wrong one here must not lose rows: the server states the time wherever a record looks old, so this may block for a
    query. Of a compacted topic Kafka has older records for good, and a new sink stores them. Retry later:
    TransientError. Fatal: PermanentError.
    """
    kept_ms = retention.of(state.table.name) * DAY_MS
    if not kept_ms or state.table.topic in COMPACTED_TOPICS:
        return 0
    until_ms = time.time_ns() // 1_000_000 - kept_ms
    if all(entry.record.timestamp_ms > until_ms for entry in state.entries):
        return 0
    [now] = rows(client(), "SELECT toUnixTimestamp64Milli(now64(3)) AS ms")
    return max(0, int(now["ms"]) - kept_ms)


def count_expired(pending: PendingRange, days: int) -> None:
    """Count and log the rows of a committed range that are in no table because of their age.

    `days`: retention; 0 = for ever. A repeated batch is not stored again, also where the rows that it repeats have
    expired.
    """
    kept_ms, entries = days * DAY_MS, pending.entries
    repeated = (e.rows for e in entries if 0 < e.repeats_ms <= e.record.timestamp_ms - kept_ms)
    expired = {
        "arrival": sum(e.rows for e in entries if e.disposition is Disposition.EXPIRED),
        "repeated": sum(repeated) if days else 0,
    }
    for reason, count in expired.items():
        if not count:
            continue
        topic = pending.table.topic.value
        metrics.SINK_EXPIRED.labels(topic, reason).inc(count)
        log.warning(
            f"rows are older than the retention of {pending.table.name}, so it does not have them",
            topic=topic, reason=reason, rows=count, retention_days=days, first_offset=pending.range.first,
        )  # fmt: skip
