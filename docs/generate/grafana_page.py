"""Write docs/grafana.md: its text from here, tables of dashboards and alert rules from their sources."""

from __future__ import annotations

from pathlib import Path

from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import FOLDER
from drumline.infra.grafana.provisioning.rules import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "grafana.md"
HEAD = f"""# Dashboards and alerts

Which dashboards and alert rules does drumline bring, and why does each limit have its value? They are in Grafana's
folder `{FOLDER}`. [Grafana](guide/grafana.md) explains how to install and change them. `make docs` writes this page.

## Dashboards

"""
RULES = """
## Alert rules

Limits are the constants that the panels draw (`infra/grafana/thresholds.py`); those of verdicts are the stream
worker's. Each message has a summary, its subject, and a link to the panel with job, run or host chosen. The link covers
the time from an hour before the alert began until its end. The annotation `dashboard` of an alert has no time range.

No data raises no alert: a fleet without jobs is silent, and so is one whose sinks are down. Watch `/readyz` and the
[metrics](reference/metrics.md) of the programs for that.
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
