"""Alert rules for Prometheus, on what only the programs' own metrics show: a program that is down leaves no rows.

infra/prometheus/rules.yml has them for Prometheus, docs/reference/metrics.md for people (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PrometheusRule:
    """Describes an alert. `expr` is PromQL; `holds_s`: time for which it must hold; s."""

    name: str
    expr: str
    severity: Literal["warning", "critical"]
    meaning: str
    action: str
    holds_s: int = 0


def _rise(name: str, metric: str, meaning: str, action: str) -> PrometheusRule:
    """Return the alert on a counter that has risen in 15 minutes: also by the first event of a new series."""
    expr = f"increase({metric}[15m]) > 0 or ({metric} unless {metric} offset 15m) > 0"
    return PrometheusRule(name, expr, "warning", meaning, action)


#: A worker that has acknowledged nothing for a minute.
_STANDS = "drumline_stream_last_commit_age_seconds > 60"

RULES: tuple[PrometheusRule, ...] = (
    PrometheusRule(
        "DrumlineProgramDown", 'up{job="drumline"} == 0', "critical", "a worker, sink or agent does not answer",
        "start it, and read why it ended: exit code 4 of a sink means that Kafka lost records that are stored", 60,
    ),
    PrometheusRule(
        "DrumlineNotReady", "drumline_stream_ready == 0 or drumline_sink_ready == 0 or drumline_agent_ready == 0",
        "critical", "the program waits for Kafka, ClickHouse or its partitions", "`/readyz` of the program states why",
        60,
    ),
    PrometheusRule(
        "DrumlineLagGrows", f"delta(drumline_stream_lag_records[5m]) > 0 and {_STANDS}", "warning",
        "a worker falls behind and acknowledges nothing", "read its log; check Kafka; add workers", 120,
    ),
    PrometheusRule(
        "DrumlineClockSkew", "abs(drumline_stream_clock_skew_seconds) > 60", "warning",
        "the clock of this host or of the broker is wrong; results use the broker's", "correct the clock (NTP)", 60,
    ),
    _rise(
        "DrumlineWorkerHalted", "drumline_stream_halts_total",
        "the worker was halted for longer than its session; nothing is lost",
        "find what halts it: a frozen VM, swap, a CPU limit",
    ),
    _rise(
        "DrumlineWorkerFenced", "drumline_stream_fenced_records_total",
        "results of a worker that had lost its partition were ignored; its successor wrote them",
        "find what halts the worker: a frozen VM, swap, a CPU limit",
    ),
    _rise(
        "DrumlineJobInQuarantine", "drumline_stream_quarantined_units_total",
        "an error in one job, or too much state; its results of 10 minutes are missing",
        "read the worker's log; report it",
    ),
    _rise(
        "DrumlineConflictInWorker", "drumline_stream_conflicting_records_total",
        "two contents under one process and sequence; both count",
        "find the second producer; `drumline audit` names the process",
    ),
    _rise(
        "DrumlineConflictInSink", "drumline_sink_conflicting_records_total",
        "two contents under one process and sequence; both count",
        "find the second producer; `drumline audit` names the process",
    ),
    _rise(
        "DrumlineDeadLetterFlood", "drumline_sink_flood_events_total",
        "dead letters flood: their producer is set apart, or its partition read more slowly",
        "`/readyz` names partition and offset; correct the producer",
    ),
    _rise(
        "DrumlineUnreadableBatchInSink", "drumline_sink_unreadable_batches_total",
        "a batch that cannot be unpacked, perhaps an attack; one dead letter", "find who may write to the topic",
    ),
    _rise(
        "DrumlineUnreadableBatchInWorker", "drumline_stream_unreadable_batches_total",
        "a batch that cannot be unpacked, perhaps an attack; one dead letter", "find who may write to the topic",
    ),
    _rise(
        "DrumlineOffsetsMissing", "drumline_sink_missing_offsets_total",
        "Kafka did not deliver offsets: retention, transactions, or a lost tail",
        "`drumline audit` names them (`lost`, `tail_lost`)",
    ),
    _rise(
        "DrumlineStageFails", "drumline_stream_failed_ticks_total", "a stage fails for all its jobs: a defect",
        "read the log; report it",
    ),
)  # fmt: skip
