"""Alert rules for Prometheus, on what only the programs' own metrics show: a program that is down leaves no rows.

infra/prometheus/rules.yml has them for Prometheus, docs/reference/metrics.md for people (`make docs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class PrometheusRule:
    """Describes an alert. `expr` is PromQL; `holds_s`: time for which it must hold; s.

    meaning: what is wrong, and why. check: how to see it. act: what ends it.
    """

    name: str
    expr: str
    severity: Literal["warning", "critical"]
    meaning: str
    check: str
    act: str
    holds_s: int = 0


def _rise(name: str, metric: str, meaning: str, check: str, act: str) -> PrometheusRule:
    """Return the alert on a counter that has risen in 15 minutes: also by the first event of a new series."""
    expr = f"increase({metric}[15m]) > 0 or ({metric} unless {metric} offset 15m) > 0"
    return PrometheusRule(name, expr, "warning", meaning, check, act)


_HALTS = "Find what halts it: a frozen VM, swap, a CPU limit."
_NO_HALTS = "Take that away: more memory or CPU, or a host of its own."
#: Meaning, check and act of alerts that sink and worker have alike.
_CONFLICT = (
    "two contents under one process and sequence; both count",
    "`drumline audit` names the process: who else writes under its identity?", "End the second producer.",
)  # fmt: skip
_UNREADABLE = (
    "a batch that cannot be unpacked, perhaps an attack; one dead letter",
    "Find who may write to the topic (Kafka's ACLs).", "Correct that producer, or take its right to write away.",
)  # fmt: skip
#: A worker that has acknowledged nothing for a minute.
_STANDS = "drumline_stream_last_commit_age_seconds > 60"

RULES: tuple[PrometheusRule, ...] = (
    PrometheusRule(
        "DrumlineProgramDown", 'up{job="drumline"} == 0', "critical", "a worker, sink or agent does not answer",
        "Read the end of its log, and its exit code: 4 of a sink means that Kafka lost records that are stored.",
        "Start it again.", 60,
    ),
    PrometheusRule(
        "DrumlineNotReady", "drumline_stream_ready == 0 or drumline_sink_ready == 0 or drumline_agent_ready == 0",
        "critical", "the program waits for Kafka, ClickHouse or its partitions",
        "`/readyz` of the program states what it waits for.",
        "Start that, or correct its address or the program's rights. The program goes on by itself.", 60,
    ),
    PrometheusRule(
        "DrumlineLagGrows", f"delta(drumline_stream_lag_records[5m]) > 0 and {_STANDS}", "warning",
        "a worker falls behind and acknowledges nothing",
        "Read its log. Does Kafka answer? Is the worker's CPU busy?",
        "Start Kafka if it is down; else add workers.", 120,
    ),
    PrometheusRule(
        "DrumlineClockSkew", "abs(drumline_stream_clock_skew_seconds) > 60", "warning",
        "the clock of this host or of the broker is wrong; results use the broker's",
        "Compare `date` on this host and on the broker's; `timedatectl` shows whether NTP works.",
        "Correct the clock that is wrong.", 60,
    ),
    _rise(
        "DrumlineWorkerHalted", "drumline_stream_halts_total",
        "the worker was halted for longer than its session; nothing is lost",
        _HALTS, _NO_HALTS,
    ),
    _rise(
        "DrumlineWorkerFenced", "drumline_stream_fenced_records_total",
        "results of a worker that had lost its partition were ignored; its successor wrote them",
        _HALTS, _NO_HALTS,
    ),
    _rise(
        "DrumlineJobInQuarantine", "drumline_stream_quarantined_units_total",
        "an error in one job, or too much state; its results of 10 minutes are missing",
        "Read the worker's log: it has job, stage and error.", "Report it; the job is taken up again by itself.",
    ),
    _rise("DrumlineConflictInWorker", "drumline_stream_conflicting_records_total", *_CONFLICT),
    _rise("DrumlineConflictInSink", "drumline_sink_conflicting_records_total", *_CONFLICT),
    _rise(
        "DrumlineDeadLetterFlood", "drumline_sink_flood_events_total",
        "dead letters flood: their producer is set apart, or its partition read more slowly",
        "`/readyz` names partition and offset, `drumline dlq show TOPIC` the reason.", "Correct or end the producer.",
    ),
    _rise("DrumlineUnreadableBatchInSink", "drumline_sink_unreadable_batches_total", *_UNREADABLE),
    _rise(
        "DrumlineRowsNotCounted", 'drumline_stream_dropped_rows_total{reason=~"budget|repeated"}',
        "rows that are stored are in no result: state is full, or their batch came after 64 gaps or 256 batches",
        "The label `reason`. Repeated: `drumline audit` names windows that differ; is one agent far behind?",
        "Budget: add workers or raise `DRUMLINE_STREAM__STATE_MB`. Repeated: end what holds the batches back.",
    ),
    _rise("DrumlineUnreadableBatchInWorker", "drumline_stream_unreadable_batches_total", *_UNREADABLE),
    _rise(
        "DrumlineOffsetsMissing", "drumline_sink_missing_offsets_total",
        "Kafka did not deliver offsets: retention, transactions, or a lost tail",
        "`drumline audit` names them (`lost`, `tail_lost`).",
        "Lengthen Kafka's retention if that was it; what Kafka lost cannot be fetched again.",
    ),
    _rise(
        "DrumlineRowsExpired", "drumline_sink_expired_rows_total",
        "rows that came are in no table because of their age; `drumline audit` counts them as expired",
        "The label `reason`. Arrival: Kafka got them before the table's retention, so the sink was that far behind.",
        "Arrival: lengthen the retention. Repeated: the database had them once; publish them into another.",
    ),
    _rise(
        "DrumlineOldRowsPublished", "drumline_agent_old_rows_total",
        "an agent published rows older than their table's retention; they are kept, unless they were stored before",
        "Its log names the folders: was the agent cut off so long, or is an archive published again?",
        "End what cut the agent off. The rows are kept for the retention from now on.",
    ),
    PrometheusRule(
        "DrumlineTimesUntrusted",
        'increase(drumline_agent_ring_dropped_operations_total{reason="untrusted"}[15m]) '
        "> ignoring(reason) 0.05 * increase(drumline_agent_ring_operations_total[15m])", "warning",
        "NCCL reported the times of older operations; these have no rows, and verdicts lack them",
        "`drumline sql collecting` names the processes, `drumline doctor` what their NCCL version does.",
        "Record these jobs with `drumline run --policy always`.", 60,
    ),
    _rise(
        "DrumlineStageFails", "drumline_stream_failed_ticks_total", "a stage fails for all its jobs: a defect",
        "Read its log: it has stage and error.", "Report it.",
    ),
)  # fmt: skip
