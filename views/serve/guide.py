"""Guidance on causes and alerts, as pages show it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from drumline.infra.grafana.provisioning.rules import escalation, rules
from drumline.infra.guidance.causes import CAUSES, WITHOUT_WINDOWS
from drumline.infra.guidance.entry import DRUMLINE, Entry
from drumline.infra.guidance.hangs import HANGS
from drumline.infra.telemetry import verdict_rules
from drumline.infra.telemetry.prometheus_rules import RULES


def by_cause() -> dict[str, list[Entry]]:
    """Return the entries of each cause: that of the cause itself, then its details."""
    entries = (*CAUSES, *WITHOUT_WINDOWS, *HANGS)
    return {name: list(group) for name, group in groupby(entries, lambda entry: entry.cause)}


def alert(name: str) -> dict[str, Any]:
    """Return the values of the page of a rule of Grafana (its uid) or Prometheus (its name); {} for an unknown one."""
    for rule in rules():
        if rule.uid == name:
            escalate = "the owner that the cause names" if "$values" in rule.escalate else escalation(rule)
            return {"title": rule.title, "meaning": "", "rule": rule, "limit": rule.reason,
                    "check": rule.check.replace("{{ $labels.job }}", "JOB"), "job_limit": rule.job_limit,
                    "escalate": escalate}  # fmt: skip
    for other in (*RULES, *verdict_rules.RULES):
        if other.name == name:
            return {"title": name, "meaning": other.meaning, "rule": other, "limit": "", "check": other.check,
                    "job_limit": None, "escalate": DRUMLINE}  # fmt: skip
    return {}
