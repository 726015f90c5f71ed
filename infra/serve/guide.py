"""Guidance on causes and alerts, as pages show it."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from drumline.infra.grafana.provisioning.rules import GROUPS
from drumline.infra.guidance.causes import CAUSES
from drumline.infra.guidance.entry import DRUMLINE, Entry
from drumline.infra.guidance.hangs import HANGS
from drumline.infra.telemetry.prometheus_rules import RULES


def by_cause() -> dict[str, list[Entry]]:
    """Return the entries of each cause: that of the cause itself, then its details."""
    return {name: list(group) for name, group in groupby((*CAUSES, *HANGS), lambda entry: entry.cause)}


def alert(name: str) -> dict[str, Any]:
    """Return the values of the page of a rule of Grafana (its uid) or Prometheus (its name); {} for an unknown one."""
    for group in GROUPS:
        for rule in group.rules:
            if rule.uid == name:
                by_cause_only = "$values" in rule.escalate
                escalate = "the owner that the cause names" if by_cause_only else rule.escalate or group.escalate
                return {"title": rule.title, "meaning": "", "rule": rule, "limit": rule.reason,
                        "job_limit": rule.job_limit, "escalate": escalate}  # fmt: skip
    for other in RULES:
        if other.name == name:
            return {"title": name, "meaning": other.meaning, "rule": other, "limit": "", "job_limit": None,
                    "escalate": DRUMLINE}  # fmt: skip
    return {}
