"""What the worker counts, and what it says of its readiness. The metrics themselves are in infra/metrics.py."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.streams.core.stage import Stage

#: Ticks come back from Kafka every second; without any for so long nothing else comes either; s.
QUIET_S = 30.0
#: (rows too late or of an impossible time, batches that came again), since a stage was built.
Drops = tuple[int, int]


def count_input(batch: Batch, now_ns: int) -> None:
    """A batch that was read, before it is applied."""
    metrics.STREAM_ROWS.labels(batch.topic).inc(batch.rows)
    metrics.STREAM_BATCH.labels(batch.topic).observe(batch.rows)
    sent_ns = int(batch.envelope["sent_ns"])
    if sent_ns > 0:
        metrics.STREAM_DELAY.labels(batch.topic).observe(max(0, now_ns - sent_ns) / 1e9)


def count_output(batch: Batch) -> None:
    metrics.STREAM_SENT.labels(batch.topic).inc()
    metrics.STREAM_SENT_ROWS.labels(batch.topic).inc(batch.rows)


def count_drops(name: str, stage: Stage, counted: Drops) -> Drops:
    """Add to the counters what a stage dropped since `counted`; what to pass next time. A stage's own counts fall when
    it forgets a run; by then they have been counted here."""
    late, duplicates = int(getattr(stage, "too_old", 0)), int(getattr(stage, "duplicates", 0))
    metrics.STREAM_DROPPED.labels(name, "late").inc(max(0, late - counted[0]))
    metrics.STREAM_DUPLICATES.labels(name).inc(max(0, duplicates - counted[1]))
    return late, duplicates


class Readiness:
    """Partitions, state, and life from Kafka. Times are of a monotonic clock; s."""

    def __init__(self, app: Any, health: Health) -> None:
        self.health = health
        self._app, self._numbers = app, 0
        self._committed: float | None = None
        self._started: float | None = None
        self._heard = 0.0

    def assigned(self, partitions: Iterable[Any], now: float) -> None:
        """Partitions have moved; these are the worker's now."""
        self._numbers, self._heard = len({tp.partition for tp in partitions}), now
        metrics.STREAM_REBALANCES.inc()
        metrics.STREAM_PARTITIONS.set(self._numbers)

    def heard(self, now: float) -> None:
        """A tick came back from Kafka."""
        self._heard = now

    def silence(self, now: float) -> float:
        """Since anything came from Kafka, or since the start."""
        return now - max(self._heard, self._started if self._started is not None else now)

    def committed(self, now: float) -> None:
        self._committed = now

    def observe(self, now: float) -> None:
        """Called by the main loop, a few times a second."""
        self._started = now if self._started is None else self._started
        self.health.heartbeat()
        self.health.set_reason("partitions", "" if self._numbers else "no partitions assigned")
        self.health.set_reason("rebalance", "partitions are being moved" if self._app.rebalancing else "")
        self.health.set_reason("state", "state is being read back" if self._app.in_recovery else "")
        quiet = self._numbers > 0 and not self._app.in_recovery and now - self._heard > QUIET_S
        self.health.set_reason("kafka", f"nothing has come from Kafka for {now - self._heard:.0f} s" if quiet else "")
        since = self._started if self._committed is None else self._committed
        metrics.STREAM_COMMIT_AGE.set(max(0.0, now - since))


def notice_commits(app: Any, readiness: Readiness, clock: Any) -> None:
    """Tell `readiness` of every commit that the broker took: that is when Faust tells its tables."""
    told = app.tables.on_commit

    def on_commit(offsets: Any) -> None:
        readiness.committed(clock())
        told(offsets)

    app.tables.on_commit = on_commit
