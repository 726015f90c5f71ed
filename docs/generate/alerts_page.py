"""Write docs/reference/alerts.md: the alert rules from their sources."""

from __future__ import annotations

from page import NOTE, REFERENCE, table, write

from drumline.infra.grafana.alerts.rule import Rule
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.provisioning.rules import GROUPS, escalation

PAGE = REFERENCE / "alerts.md"
HEAD = f"""{NOTE.format(name="alerts_page")}# Alert rules

Which alert rules does drumline have, and why does each limit have its value? [Grafana](../guide/grafana.md) explains
how to install and change them.

Limits are the constants that the panels draw (`infra/grafana/thresholds.py`); those of verdicts belong to the stream
worker. Each message has a summary, its subject, what to check, what to do, who else can, and links: to the rule's
page of `drumline serve` (`DRUMLINE_SERVE__URL`) and to the panel with job, run or host chosen.
The link covers the time from an hour before the alert began until its end.

No data raises no alert, but [Nothing arrives](#nothing-arrives). `infra/prometheus` has rules that name the program
that is down ([metrics](metrics.md)).

"""


def page() -> str:
    """Return the page's text: an overview, then each rule with its reason."""
    rules = [(rule, group.interval_s) for group in GROUPS for rule in group.rules]
    overview = [
        (f"[{r.title}](#{_anchor(r.title)})", r.severity, f"{interval_s} s", f"{r.for_s} s") for r, interval_s in rules
    ]
    parts = [HEAD + table(("rule", "severity", "evaluated every", "pending for"), overview)]
    parts += [_section(rule) for rule, _ in rules]
    return "\n".join(parts)


def _section(rule: Rule) -> str:
    escalate = "it depends on the cause" if "$values" in rule.escalate else escalation(rule)
    text = f"{_steps(rule)}\n\nEscalate to: {escalate}.\n\n{rule.reason}{_job_limit(rule)}"
    return f"## {rule.title}\n\n{text}\n\nPanel: {_panel(rule)}.\n"


def _steps(rule: Rule) -> str:
    """Return what to check and to do."""
    if "$values" in rule.act:
        return "Check, do: it depends on the cause, see [causes](causes.md)."
    return f"Check: {rule.check.replace('{{ $labels.job }}', 'JOB')}\n\nDo: {rule.act}"


def _job_limit(rule: Rule) -> str:
    """Return how jobs get a limit of their own."""
    return (
        f" Other limit for a job: `drumline limits set {rule.job_limit.name}=VALUE --job JOB`."
        if rule.job_limit
        else ""
    )


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def _panel(rule: Rule) -> str:
    """Return the title of the dashboard that the alert's link opens."""
    uid, _ = rule.shows
    return next(dashboard.title for dashboard in DASHBOARDS if dashboard.uid == uid)


if __name__ == "__main__":
    write(PAGE, page())
