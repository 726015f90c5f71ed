"""Writes docs/grafana.md: its text from here, tables of dashboards, settings and alert rules from their sources."""

from __future__ import annotations

from pathlib import Path

from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import FOLDER
from drumline.infra.grafana.provisioning.contacts import ADDRESSES
from drumline.infra.grafana.provisioning.rules import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "grafana.md"
HEAD = f"""# Grafana

Dashboards and alert rules for Grafana 12 or newer with ClickHouse's plugin (`grafana-clickhouse-datasource`, 4.20.0).
They are Python (`infra/grafana`) and the JSON and YAML made of it by `drumline grafana generate`. All are in the
folder `{FOLDER}`; every name in a table leads to the next level and keeps time and choices; verdicts and XIDs are marks
on the charts. This page is made by `make docs`.

No Grafana ran while they were made: tests expand the plugin's macros, run every statement and rule on ClickHouse over
recordings, evaluate rules by Grafana's documented semantics, and read the JSON with Grafana's own model
(`grafana-foundation-sdk`). What only a browser can show was not looked at.

## With file access

Mount `infra/grafana/generated/dashboards` at `/etc/drumline/dashboards` and `infra/grafana/generated/provisioning` at
`/etc/grafana/provisioning`, as `infra/compose` does. Grafana's own environment must have `DRUMLINE_CLICKHOUSE_HOST`,
`_PORT` (native), `_USER`, `_PASSWORD`, `_DATABASE`, and for each contact point its address:
{", ".join(f"`{name}`" for name in ADDRESSES.values())}. `policies.yaml` replaces the server's whole
policy tree: leave it out where there is one.

`drumline grafana generate -o DIR --contact slack --contact pagerduty` writes the files for the contact points that you
have (Grafana does not start on one whose address is missing); `--check` only says whether files would change.

The files as they are speak with ClickHouse without TLS. `--tls` makes those for its TLS port (9440), `--ca` too if its
certificate is of a CA of your own: put that CA's certificate (PEM) into `DRUMLINE_CLICKHOUSE_CA`. For client
certificates write the data source yourself, with the uid `clickhouse`, and leave ours out. It is not the default data
source, because Grafana does not start if two files declare one.

## Over HTTP

```
export DRUMLINE_GRAFANA__URL=https://grafana.example DRUMLINE_GRAFANA__TOKEN_FILE=/run/secrets/grafana-token
drumline grafana apply --dry-run
drumline grafana apply
drumline grafana diff
drumline grafana export -o saved
```

The token is a service account's with role Admin. `apply` makes the folder, the data source (only if none has the uid
`clickhouse`; it needs `DRUMLINE_GRAFANA__CLICKHOUSE_PASSWORD`), dashboards, rules, message template, and a contact
point for each of `DRUMLINE_GRAFANA__WEBHOOK`, `__SLACK`, `__PAGERDUTY` that is set. It may run again: what is as it
should be is left alone. `diff` exits with 3 where somebody edited, removed or added something, and says where. It
does not see secrets, which Grafana hides, and leaves an existing data source to its administrator. `--policies` also
replaces the notification policies. `export` fetches our dashboards and rules as the server has them.

The data source's user should be a reader (`drumline roles apply --grafana USER`, [security.md](guide/security.md)).

## Dashboards

A panel without data says so in its own words; a table's cell without a value shows `-`. After the demo, choose the time
in which its job ran (its row of the Fleet dashboard: last 6 hours): most dashboards open with the last hour, the kernel
timeline with the last minute. Two tables are empty because nothing is wrong (ranks not heard, dead letters), NVLink's
traffic because the recording has none, and money is 0 until the Cost dashboard or
`DRUMLINE_STREAM__PRICE_PER_GPU_HOUR` has a price.

"""
RULES = """
## Alert rules

Limits are the constants that the panels draw (`infra/grafana/thresholds.py`), those of verdicts the stream worker's
own. Each message has a summary, who and what it is about, and a link to the panel with the job, run or host chosen,
from an
hour before the alert began until now, or until it ended. (An alert's own annotation `dashboard` has no time: Grafana
fills in an annotation without knowing when the alert began.)
No data is no alarm: a fleet without jobs is silent, and so is one whose sinks are down. That the sinks are up is for
`/readyz` and their metrics ([telemetry.md](reference/metrics.md)).
"""


def page() -> str:
    lines = [HEAD, "| dashboard | answers | range | choices |", "|---|---|---|---|"]
    for made in DASHBOARDS:
        choices = ", ".join(variable.label.lower() for variable in made.variables)
        lines.append(f"| {made.title} | {made.description} | {made.start} | {choices} |")
    lines += [RULES, "| rule | severity | every | for | why this limit |", "|---|---|---|---|---|"]
    for group in GROUPS:
        for rule in group.rules:
            lines.append(f"| {rule.title} | {rule.severity} | {group.interval_s} s | {rule.for_s} s | {rule.reason} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    PAGE.write_text(page())
    print(f"{PAGE} is written")


if __name__ == "__main__":
    main()
