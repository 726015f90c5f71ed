"""Write docs/reference/metrics.md: its text from here, the metrics from their list."""

from __future__ import annotations

from collections.abc import Sequence

from page import NOTE, REFERENCE, table, write
from prometheus_files import duration

from drumline.infra.telemetry import metrics, verdict_rules
from drumline.infra.telemetry.prometheus_rules import RULES, PrometheusRule
from drumline.infra.telemetry.verdict_metrics import VERDICT_METRICS

PAGE = REFERENCE / "metrics.md"
HEAD = """# Metrics, health and logs

What do worker, sink, agent and exporter expose about themselves, and the exporter about jobs? Each serves three pages:

| page | 200 | 503 |
|---|---|---|
| `/healthz` | the main loop has moved within 180 s | it has not: restart the program |
| `/readyz` | it has partitions, its state, and the servers it writes to | it waits; this recovers by itself |
| `/metrics` | Prometheus text format, or OpenMetrics on request | |

| program | port | setting; 0 = no server |
|---|---|---|
| `drumline stream` | 19464 | `DRUMLINE_METRICS_PORT` |
| `drumline sink` | 19465 | `DRUMLINE_METRICS_PORT` |
| `drumline agent` | 19466 | `DRUMLINE_METRICS_PORT` |
| `drumline exporter` | 19467 | `DRUMLINE_METRICS_PORT` |

They listen on 127.0.0.1, or on `DRUMLINE_METRICS_ADDRESS`: a kubelet probes the pod's address. The pages have no
password and no TLS; let only your network in. A port in use is a warning in the log, and the program works without
metrics. A 503 gives the reasons in JSON. The
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

Grafana's [alert rules](alerts.md) see what is in ClickHouse. What they cannot see is in these metrics.
`infra/prometheus/rules.yml` has these alerts; load it as a rule file. `infra/prometheus/scrape.yml` is an example of
the scrape configuration that it expects (`job: drumline`).

"""
VERDICTS_HEAD = """## Metrics about jobs

`drumline exporter` serves these ([verdicts elsewhere](../guide/verdicts-out.md)). All are gauges of what is known now.

"""
VERDICT_RULES_HEAD = """## Rules about jobs

`infra/prometheus/verdicts.yml` has these series and alerts.

"""
TAIL = """## Logs

Logs go to stderr, readable on a terminal. `DRUMLINE_LOG_JSON=true` writes one JSON object per line, for libraries too.
`DRUMLINE_LOG_LEVEL` is DEBUG, INFO, WARNING or ERROR; DEBUG logs no more than INFO today. Libraries log from WARNING on
at any level, because aiokafka's debug lines contain requests with passwords and payloads. Values of secret settings are
masked, and payloads are never logged.
"""


def page() -> str:
    """Return the page's text."""
    of_jobs = VERDICTS_HEAD + table(
        ("metric", "labels", "meaning"),
        [(f"`{m.name}`", ", ".join(f"`{label}`" for label in m.labels), m.help) for m in VERDICT_METRICS],
    )
    recording = table(
        ("series", "expression", "meaning"),
        [(f"`{rule.name}`", f"`{rule.expr}`", rule.meaning) for rule in verdict_rules.RECORDING],
    )
    of_rules = VERDICT_RULES_HEAD + recording + "\n" + _alerts(verdict_rules.RULES)
    parts = (
        NOTE.format(name="metrics_page") + HEAD,
        metrics.table(),
        of_jobs,
        ALERTS_HEAD + _alerts(RULES),
        of_rules,
        TAIL,
    )
    return "\n".join(parts)


def _alerts(of: Sequence[PrometheusRule]) -> str:
    rows = [(rule.name, f"`{rule.expr}`", duration(rule.holds_s), rule.meaning, rule.check, rule.act) for rule in of]
    return table(("alert", "expression", "for", "meaning", "check", "do"), rows)


if __name__ == "__main__":
    write(PAGE, page())
