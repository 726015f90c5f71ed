"""Write docs/reference/metrics.md: its text from here, the metrics from their list."""

from __future__ import annotations

from page import NOTE, REFERENCE, table, write

from drumline.infra.telemetry import metrics

PAGE = REFERENCE / "metrics.md"
HEAD = """# Metrics, health and logs

What do worker, sink and agent expose about themselves? Each serves three pages, on 127.0.0.1 only:

| page | 200 | 503 |
|---|---|---|
| `/healthz` | the main loop has moved within 180 s | it has not: restart the program |
| `/readyz` | it has partitions, its state, and the servers it writes to | it waits; this recovers by itself |
| `/metrics` | Prometheus text format, or OpenMetrics on request | |

| program | port | setting; 0 = no server |
|---|---|---|
| `drumline stream` | 19464 | `DRUMLINE_STREAM__METRICS_PORT` |
| `drumline sink` | 19465 | `DRUMLINE_SINK__METRICS_PORT` |
| `drumline agent` | 19466 | `DRUMLINE_AGENT__METRICS_PORT` |

A port in use is a warning in the log, and the program works without metrics. To scrape from another host, use a node
agent, a sidecar or a proxy with TLS. A 503 gives the reasons in JSON. The
[runbook](../guide/runbook.md#reasons-in-readyz) explains each:

```
{"ready": false, "reasons": {"clickhouse": "ClickHouse does not answer", "retry": "retrying, attempt 5: clickhouse"}}
```

## Metrics

- Counters start at zero with the process. Exact accounts of what is stored come from `drumline audit`.
- `process_*` (memory, CPU time, open files) come on top.
- `reason` of a dead letter is the error's type, as in the header `drumline.error.code` and the ledger's column `error`.
- Delays compare clocks of two hosts; values below zero count as zero.
- A series with the label `topic` appears with its first event: `rate()` does not see that event, `> 0` does.
- The age of the last commit also grows while no records arrive: alert on it together with the lag.
"""
ALERTS_HEAD = """## What to alert on

Grafana's [alert rules](alerts.md) see what is in ClickHouse. What they cannot see is in these metrics. Alert where a
counter N has risen in 15 minutes: `N - (N offset 15m or N * 0) > 0` sees the first event of a series too.

"""
#: Metric, what its rise means, and what to do.
ALERTS = (
    (
        "stream_halts_total", "the worker was halted for longer than its session; nothing is lost",
        "find what halts it: a frozen VM, swap, a CPU limit",
    ),
    (
        "stream_fenced_records_total", "results of a worker that had lost its partition were ignored; its successor "
        "wrote them", "as for halts",
    ),
    (
        "stream_quarantined_units_total", "an error in one job, or too much state; its results of 10 minutes are "
        "missing", "read the worker's log; report it",
    ),
    (
        "stream_conflicting_records_total", "two contents under one process and sequence; both count",
        "find the second producer; `drumline audit` names the process",
    ),
    ("sink_conflicting_records_total", "the same, in the sink", "the same"),
    (
        "sink_flood_events_total", "dead letters flood: their producer is set apart, or its partition read more slowly",
        "`/readyz` names partition and offset; correct the producer",
    ),
    (
        "sink_unreadable_batches_total", "a batch that cannot be unpacked, perhaps an attack; one dead letter",
        "find who may write to the topic",
    ),
    ("stream_unreadable_batches_total", "the same, in a worker", "the same"),
    (
        "sink_missing_offsets_total", "Kafka did not deliver offsets: retention, transactions, or a lost tail",
        "`drumline audit` names them (`lost`, `tail_lost`)",
    ),
    (
        "stream_failed_ticks_total", "a stage fails for all its jobs: a defect", "read the log; report it",
    ),
)  # fmt: skip
ALERTS_TAIL = """
Also alert on:

- `abs(drumline_stream_clock_skew_seconds) > 60`: the clock of this host or of the broker is wrong. Results use
  the broker's.
- `up == 0`, for 60 seconds. A sink that ends with exit code 4 found that Kafka lost records that are stored
  ([runbook](../guide/runbook.md#kafka)).
- `drumline_stream_lag_records` that grows while `drumline_stream_last_commit_age_seconds > 60`.

"""
TAIL = """## Logs

Logs go to stderr, readable on a terminal. `DRUMLINE_LOG_JSON=true` writes one JSON object per line, for libraries too.
`DRUMLINE_LOG_LEVEL` is DEBUG, INFO, WARNING or ERROR; DEBUG logs no more than INFO today. Libraries log from WARNING on
at any level, because aiokafka's debug lines contain requests with passwords and payloads. Values of secret settings are
masked, and payloads are never logged.
"""


def page() -> str:
    """Return the page's text. Raises ValueError if an alert names no metric."""
    rows = [(f"`drumline_{name}`", meaning, action) for name, meaning, action in ALERTS]
    listed = {f"`{metric.name}`" for metric in metrics.METRICS}
    if unknown := [name for name, *_ in rows if name not in listed]:
        raise ValueError(f"no such metrics: {', '.join(unknown)}")
    alerts = ALERTS_HEAD + table(("metric", "what a rise means", "what to do"), rows) + ALERTS_TAIL
    return "\n".join([NOTE.format(name="metrics_page") + HEAD, metrics.table(), alerts + TAIL])


if __name__ == "__main__":
    write(PAGE, page())
