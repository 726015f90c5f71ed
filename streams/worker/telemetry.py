"""Count the worker's work and report its readiness; infra/telemetry/metrics.py declares the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import structlog

from drumline.infra.runtime.stage import Stage
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.schemas.record_table import RecordTable

log = structlog.get_logger()
#: Ticks come back from Kafka every second; without any for so long no other record comes either; s.
QUIET_S = 30.0
#: A worker whose records expired in Kafka is not ready for so long, so that a probe of any period sees it; s.
EXPIRED_S = 900.0
#: Jobs that a log line names.
MOST_JOBS = 20
#: A partition with records, or records in work, that do not move for so long are stuck; s.
STUCK_S = 30.0
#: Attributes of a stage that `Drops` has, in its order.
STAGE_COUNTS = ("too_old", "quarantined_rows", "denied_rows", "repeated_rows", "duplicates", "conflicts")


class Drops(NamedTuple):
    """Counts what a stage dropped since it was built: rows by reason (label of the metric), and repeated batches."""

    late: int = 0
    quarantine: int = 0
    budget: int = 0
    repeated: int = 0
    duplicate: int = 0
    conflict: int = 0


def count_input(table: RecordTable, now_ns: int) -> None:
    """Count records that were read, before they are applied; their delay is that of the oldest."""
    rows, batch_rows, delay = _input_metrics(table.topic)
    rows.inc(table.rows)
    for count in table.rows_of:
        batch_rows.observe(count)
    sent_ns = table.number("sent_ns")
    if (sent_ns > 0).any():
        delay.observe(max(0, now_ns - int(sent_ns[sent_ns > 0].min())) / 1e9)


@cache
def _input_metrics(topic: str) -> tuple[Any, Any, Any]:
    """Return the metrics of what is read from a topic: rows, rows of a record, its delay."""
    return metrics.STREAM_ROWS.labels(topic), metrics.STREAM_BATCH.labels(topic), metrics.STREAM_DELAY.labels(topic)


def count_output(batch: Batch) -> None:
    """Count a batch that was produced."""
    metrics.STREAM_SENT.labels(batch.topic).inc()
    metrics.STREAM_SENT_ROWS.labels(batch.topic).inc(batch.rows)


def count_drops(name: str, stage: Stage, counted: Drops) -> Drops:
    """Add to the counters what a stage dropped since `counted`; return the value to pass next time.

    Called after each record: a stage may not add up its units for it. A count that falls is not taken back.
    """
    now = Drops(*(int(getattr(stage, field, 0)) for field in STAGE_COUNTS))
    for counter, before, count in zip(_drop_counters(name), counted, now, strict=True):
        if count > before:
            counter.inc(count - before)
    return now


@cache
def _drop_counters(name: str) -> list[Any]:
    """Return the counters of a stage, one for each field of `Drops`; from then on they are shown, with 0."""
    batches = {"duplicate": metrics.STREAM_DUPLICATES, "conflict": metrics.STREAM_CONFLICTS}
    return [
        batches[field].labels(name) if field in batches else metrics.STREAM_DROPPED.labels(name, field)
        for field in Drops._fields
    ]


class Readiness:
    """Reports partitions, recovery and contact with Kafka to `health`.

    Owned by `StreamWorker`; used in its event loop. Times are of a monotonic clock, in s.
    """

    def __init__(self, app: Any, health: Health) -> None:
        self.health = health
        self._app, self._numbers = app, 0
        self._committed: float | None = None
        self._started: float | None = None
        self._last_tick = 0.0
        self._settled: tuple[int, float] = (0, 0.0)
        self._expired: list[tuple[float, Any, int]] = []

    def assigned(self, partitions: Iterable[Any], now: float) -> None:
        """Set the partitions that the worker has after a rebalance."""
        self._numbers, self._last_tick = len({tp.partition for tp in partitions}), now
        metrics.STREAM_REBALANCES.inc()
        metrics.STREAM_PARTITIONS.set(self._numbers)

    def mark_tick(self, now: float) -> None:
        """Record that a tick came back from Kafka."""
        self._last_tick = now

    def silence(self, now: float) -> float:
        """Return the time since the last tick came from Kafka, or since the start."""
        return now - max(self._last_tick, self._started if self._started is not None else now)

    def progress(self, settled: int, unsettled: int, standstill: tuple[float, str], now: float) -> None:
        """Report records that do not move; called every second.

        `settled`, `unsettled`: records acknowledged so far, and in work. `standstill`: see `Lag`.
        """
        if not unsettled or settled != self._settled[0]:
            self._settled = settled, now
        longest = max(standstill, (now - self._settled[1], f"{unsettled} acknowledgements of Kafka are missing"))
        reason = f"nothing has moved for {longest[0]:.0f} s: {longest[1]}" if longest[0] > STUCK_S else ""
        self.health.set_reason("records", reason)

    def mark_expired(self, place: Any, offsets: range, jobs: Sequence[str], now: float) -> None:
        """Count and log records of a partition that Kafka deleted before they were processed.

        `jobs`: those that the partition's state has: the records were of some of them, or of jobs that are new.
        """
        metrics.STREAM_EXPIRED.labels(place.topic).inc(len(offsets))
        self._expired.append((now + EXPIRED_S, (place.topic, place.partition), len(offsets)))
        log.error(
            "Kafka's retention deleted records before a worker had processed them; results of these jobs lack them",
            topic=place.topic, partition=place.partition, first=offsets.start, records=len(offsets),
            jobs=list(jobs[:MOST_JOBS]), more_jobs=len(jobs[MOST_JOBS:]),
        )  # fmt: skip

    def _observe_expired(self, now: float) -> None:
        self._expired = [entry for entry in self._expired if now < entry[0]]
        records, places = sum(count for _, _, count in self._expired), len({place for _, place, _ in self._expired})
        reason = f"Kafka deleted {records} records of {places} partitions before they were processed; the log names "
        self.health.set_reason("expired", f"{reason}their jobs" if records else "")

    def committed(self, now: float) -> None:
        """Record that the broker accepted a commit."""
        self._committed = now

    def observe(self, now: float) -> None:
        """Update health and metrics; called by the main loop, a few times a second."""
        self._started = now if self._started is None else self._started
        self.health.heartbeat()
        self.health.set_reason("partitions", "" if self._numbers else "no partitions assigned")
        self.health.set_reason("rebalance", "partitions are being moved" if self._app.rebalancing else "")
        self.health.set_reason("state", "state is being read back" if self._app.in_recovery else "")
        self._observe_expired(now)
        quiet = self._numbers > 0 and not self._app.in_recovery and now - self._last_tick > QUIET_S
        self.health.set_reason(
            "kafka", f"nothing has come from Kafka for {now - self._last_tick:.0f} s" if quiet else ""
        )
        since = self._started if self._committed is None else self._committed
        metrics.STREAM_COMMIT_AGE.set(max(0.0, now - since))


def watch_commits(app: Any, readiness: Readiness, clock: Any) -> None:
    """Report every commit that the broker accepted to `readiness`.

    Wraps the hook through which Faust informs its tables of commits.
    """
    notify_tables = app.tables.on_commit

    def on_commit(offsets: Any) -> None:
        readiness.committed(clock())
        notify_tables(offsets)

    app.tables.on_commit = on_commit
