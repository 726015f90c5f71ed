"""Count the sink's work and report its readiness; infra/telemetry/metrics.py declares the metrics."""

from __future__ import annotations

import re
from collections import Counter as Counted
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from prometheus_client import Counter, Histogram

from drumline.infra.clickhouse.client import ClickHouseFailed
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.telemetry import metrics
from drumline.schemas.errors import RegistryUnavailable
from drumline.schemas.parts.joining import place_of
from drumline.sinks.kafka.dead_letters import DeadLettersFailed
from drumline.sinks.ranges.disposition import Disposition

if TYPE_CHECKING:
    from drumline.infra.telemetry.health import Health
    from drumline.sinks.ranges.partition import PartitionState
    from drumline.sinks.ranges.pending_range import PendingRange

log = structlog.get_logger()
Metric = TypeVar("Metric", Counter, Histogram)
#: Looking a child up by its labels costs more than counting.
_children: dict[tuple[object, ...], Any] = {}


def _of(metric: Metric, *labels: str) -> Metric:
    """Return `metric.labels(*labels)`, cached."""
    child: Metric | None = _children.get((metric, *labels))
    if child is None:
        child = _children[metric, *labels] = metric.labels(*labels)
    return child


@dataclass(slots=True)
class SinkCounts:
    """Counts one run of a sink. `rows`: inserted by this run."""

    records: int = 0
    rows: int = 0
    ranges: int = 0
    replays: int = 0
    duplicates: int = 0
    fenced: int = 0
    expired: int = 0
    dead_letters: int = 0
    retries: int = 0

    def add(self, pending: PendingRange) -> None:
        """Count a range that is stored and committed; its rows were counted when they were inserted."""
        self.ranges += 1
        self.replays += pending.replay
        self.records += pending.records
        self.dead_letters += sum(entry.disposition is Disposition.DEAD_LETTER for entry in pending.entries)
        self.duplicates += sum(entry.disposition is Disposition.DUPLICATE for entry in pending.entries)
        self.fenced += sum(entry.disposition is Disposition.FENCED for entry in pending.entries)
        self.expired += sum(entry.disposition is Disposition.EXPIRED for entry in pending.entries)

    def retry(self, error: Exception, attempt: int, wait_s: float) -> None:
        """Count and log a failed attempt that will be repeated."""
        self.retries += 1
        metrics.SINK_RETRIES.labels(failed_dependency(error)).inc()
        log.warning("retry scheduled", attempt=attempt, wait_s=round(wait_s, 1), error=str(error))


def count_range(pending: PendingRange, now_ns: int) -> None:
    """Update the metrics for a range that is stored and committed."""
    topic = pending.table.topic.value
    _of(metrics.SINK_RANGES, topic).inc()
    _of(metrics.SINK_REPLAYS, topic).inc(pending.replay)
    delays, result_delays = _of(metrics.SINK_DELAY, topic), _of(metrics.SINK_RESULT_DELAY, topic)
    for disposition, records in Counted(entry.disposition for entry in pending.entries).items():
        _of(metrics.SINK_RECORDS, topic, disposition.value).inc(records)
    rows = dropped = 0
    for entry in pending.entries:
        if entry.disposition is Disposition.DEAD_LETTER:
            _of(metrics.SINK_DEAD_LETTERS, topic, entry.error[0] or "unknown").inc()
        if entry.batch is None or entry.disposition is Disposition.DEAD_LETTER:
            continue
        if entry.disposition in (Disposition.DUPLICATE, Disposition.FENCED):
            _of(metrics.SINK_DROPPED, topic, entry.disposition.value).inc(entry.rows)
            continue
        envelope = entry.batch.envelope
        dropped += max(0, int(envelope["dropped_before"]))
        if entry.disposition is Disposition.EXPIRED:
            continue
        rows += entry.rows
        if int(envelope["sent_ns"]) > 0:
            delays.observe(max(0, now_ns - int(envelope["sent_ns"])) / 1e9)
        end_ns = int(envelope.get("window_end_ns", 0))
        if end_ns > 0 and entry.rows:
            result_delays.observe(max(0, now_ns - end_ns) / 1e9)
    if fenced := pending.intent.fenced:
        log.warning(
            "ignored results of a stream worker that had lost the partition",
            topic=topic, partition=pending.range.partition, records=len(fenced), first=place_of(min(fenced))[0],
        )  # fmt: skip
    _of(metrics.SINK_ROWS, topic).inc(rows)
    _of(metrics.SINK_DROPPED, topic, "source").inc(dropped)


def count_conflicts(state: PartitionState) -> None:
    """Count the batches that were cut although another one is stored in their place."""
    conflicts, state.duplicates.conflicts = state.duplicates.conflicts, 0
    if conflicts:
        topic = state.table.topic.value
        _of(metrics.SINK_CONFLICTS, topic).inc(conflicts)
        log.warning(
            "batches have the process, key and sequence of stored ones and other content; both are stored",
            topic=topic, partition=state.partition, batches=conflicts,
        )  # fmt: skip


def count_insert(table: str, rows: int, seconds: float) -> None:
    """Update the metrics for an insert that ClickHouse accepted."""
    _of(metrics.SINK_INSERT, table).observe(seconds)
    _of(metrics.SINK_INSERT_ROWS, table).observe(rows)


def failed_dependency(error: Exception) -> str:
    """Return the dependency that a failed attempt waits for, as a metric label."""
    if isinstance(error, ClickHouseFailed):
        return "clickhouse"
    if isinstance(error, RegistryUnavailable):
        return "registry"
    return "dead_letters" if isinstance(error, DeadLettersFailed) else "kafka"


#: ClickHouse's error codes as reasons for an operator.
SENTENCES: dict[int, str] = {
    ErrorCode.TIMEOUT_EXCEEDED: "queries take too long",
    ErrorCode.TOO_MANY_SIMULTANEOUS_QUERIES: "too many queries at once",
    ErrorCode.MEMORY_LIMIT_EXCEEDED: "out of memory",
    ErrorCode.TABLE_IS_READ_ONLY: "the table is read-only",
    ErrorCode.NOT_ENOUGH_SPACE: "no space left on its disk",
    ErrorCode.TOO_MANY_PARTS: "too many parts, merges do not keep up",
}


def waiting_reason(error: Exception) -> str:
    """Return the dependency that a failed attempt waits for, and the reason; public, so without the error's text."""
    dependency = failed_dependency(error)
    return f"{dependency}, {code_text(error)}" if isinstance(error, ClickHouseFailed) and error.code else dependency


def code_text(error: ClickHouseFailed) -> str:
    """Return ClickHouse's code with its meaning, without values from the message."""
    label = re.search(r"\(([A-Z][A-Z_]+)\)$", str(error))
    meaning = SENTENCES.get(error.code) or (label[1] if label else "")
    return f"code {error.code}" + (f" ({meaning})" if meaning else "")


def observe(health: Health, states: Iterable[PartitionState], cut_rows: int, lag: int) -> None:
    """Update gauges and readiness, about once a second. `cut_rows`: rows in ranges that are not stored yet."""
    held = list(states)
    closed = sum(not state.opened for state in held)
    parked = sum(state.parked is not None for state in held)
    metrics.SINK_LAG.set(lag)
    metrics.SINK_PARTITIONS.set(len(held))
    metrics.SINK_COLLECTED.set(cut_rows + sum(state.rows for state in held))
    metrics.SINK_DEFERRED.set(sum(state.deferred is not None for state in held))
    health.set_reason("partitions", "" if held else "no partitions assigned")
    health.set_reason("ledger", f"{closed} partitions wait for the ledger's answer" if closed else "")
    rejected = [state for state in held if state.deferred is not None]
    names = ", ".join(f"{s.table.topic} partition {s.partition}: {s.reason}" for s in rejected[:3])
    health.set_reason("rejected", f"ClickHouse rejects a range of {names}; trying again" if rejected else "")
    floods = [state.flood for state in held if state.flood]
    health.set_reason("flood", f"dead letters: {'; '.join(floods[:3])}" if floods else "")
    unreadable = [f"{s.table.topic} partition {s.partition}, offset {s.unreadable}" for s in held if s.unreadable >= 0]
    reason = f"a batch cannot be unpacked: {', '.join(unreadable[:3])}; its end is searched" if unreadable else ""
    health.set_reason("unreadable", reason)
    health.set_reason(
        "registry",
        f"the schema registry does not answer; records of new schemas wait in {parked} partitions" if parked else "",
    )
