"""Verdicts on links, window by window."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.offline import latest, verdicts

CONFIG, JOB = StragglerConfig(), -1


class Row(NamedTuple):
    """Holds a row of a verdict."""

    rank: int
    severity: int
    cause: str
    detail: str
    evidence: Mapping[str, Any]


def verdict_windows(stream):
    """Return first step -> its rows."""
    out = {}
    for (*_, first), batch in sorted(latest(verdicts(stream, CONFIG)).items()):
        numbers = (batch.columns[name].tolist() for name in ("rank", "severity"))
        names = (("cause", "causes"), ("detail", "details"), ("evidence_json", "evidence"))
        causes, details, evidence = (batch.strings(*of).tolist() for of in names)
        rows = zip(*numbers, causes, details, map(json.loads, evidence), strict=True)
        out[first] = [Row(*values) for values in rows]
    return out


def windows(stream):
    """Return first step -> (detail of the job's slow link or "", its evidence, named ranks)."""
    out = {}
    for first, rows in verdict_windows(stream).items():
        of_job = next(row for row in rows if row.rank == JOB)
        is_slow = of_job.cause == "slow_link" and of_job.severity > OK
        named = {row.rank for row in rows if row.rank != JOB and row.severity > OK}
        out[first] = (of_job.detail if is_slow else "", of_job.evidence if is_slow else {}, named)
    return out


def flows(evidence):
    return {(flow["from"], flow["to"]) for flow in evidence["flows"]}
