"""What the sink counts, and what it says of its readiness. The metrics themselves are in infra/metrics.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from drumline.infra import metrics
from drumline.infra.clickhouse import ClickHouseFailed
from drumline.schemas.errors import RegistryUnavailable
from drumline.sinks.deadletter import DeadLettersFailed
from drumline.sinks.entry import Verdict

if TYPE_CHECKING:
    from drumline.infra.health import Health
    from drumline.sinks.partition import PartitionState, Pending


def count_range(pending: Pending, now_ns: int) -> None:
    """A range that is stored and committed."""
    topic = pending.table.topic.value
    metrics.SINK_RANGES.labels(topic).inc()
    metrics.SINK_REPLAYS.labels(topic).inc(pending.replay)
    delays, result_delays = metrics.SINK_DELAY.labels(topic), metrics.SINK_RESULT_DELAY.labels(topic)
    rows = 0
    for entry in pending.entries:
        metrics.SINK_RECORDS.labels(topic, entry.verdict.value).inc()
        if entry.verdict is Verdict.DEAD:
            metrics.SINK_DEAD_LETTERS.labels(topic, entry.error[0] or "unknown").inc()
        if entry.batch is None or entry.verdict is Verdict.DEAD:
            continue
        if entry.verdict is Verdict.DUPLICATE:
            metrics.SINK_DROPPED.labels(topic, "duplicate").inc(entry.rows)
            continue
        envelope = entry.batch.envelope
        rows += entry.rows
        metrics.SINK_DROPPED.labels(topic, "source").inc(max(0, int(envelope["dropped_before"])))
        if int(envelope["sent_ns"]) > 0:
            delays.observe(max(0, now_ns - int(envelope["sent_ns"])) / 1e9)
        end_ns = int(envelope.get("window_end_ns", 0))
        if end_ns > 0 and entry.rows:
            result_delays.observe(max(0, now_ns - end_ns) / 1e9)
    metrics.SINK_ROWS.labels(topic).inc(rows)


def count_insert(table: str, rows: int, seconds: float) -> None:
    """An insert that ClickHouse took."""
    metrics.SINK_INSERT.labels(table).observe(seconds)
    metrics.SINK_INSERT_ROWS.labels(table).observe(rows)


def at_fault(error: Exception) -> str:
    """Whom a failed try waits for, as a label."""
    if isinstance(error, ClickHouseFailed):
        return "clickhouse"
    if isinstance(error, RegistryUnavailable):
        return "registry"
    return "dead_letters" if isinstance(error, DeadLettersFailed) else "kafka"


#: What ClickHouse's error codes mean to who looks at a sink that waits.
SENTENCES = {
    159: "queries take too long",
    202: "too many queries at once",
    241: "out of memory",
    242: "the table is read-only",
    243: "no space left on its disk",
    252: "too many parts, merges do not keep up",
}


def waits_for(error: Exception) -> str:
    """Whom a failed try waits for, and why. Fit for anybody: no text of the error."""
    whom = at_fault(error)
    code = error.code if isinstance(error, ClickHouseFailed) else 0
    if not code:
        return whom
    return f"{whom}, code {code}" + (f" ({SENTENCES[code]})" if code in SENTENCES else "")


def observe(health: Health, states: Iterable[PartitionState], cut_rows: int, lag: int) -> None:
    """About once a second. `cut_rows`: in ranges that are not stored yet."""
    held = list(states)
    closed = sum(not state.opened for state in held)
    parked = sum(state.parked is not None for state in held)
    metrics.SINK_LAG.set(lag)
    metrics.SINK_PARTITIONS.set(len(held))
    metrics.SINK_COLLECTED.set(cut_rows + sum(state.rows for state in held))
    health.waits("partitions", "" if held else "no partitions assigned")
    health.waits("ledger", f"{closed} partitions wait for the ledger's answer" if closed else "")
    health.waits(
        "registry",
        f"the schema registry does not answer; records of new schemas wait in {parked} partitions" if parked else "",
    )
