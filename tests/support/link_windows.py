"""Verdicts on links, window by window."""

from __future__ import annotations

import json

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import latest, verdicts

CONFIG, JOB = StragglerConfig(), -1


def windows(stream):
    """Return first step -> (detail of the job's slow link or "", its evidence, named ranks)."""
    out = {}
    for (*_, first), batch in sorted(latest(verdicts(stream, CONFIG)).items()):
        ranks, severity = batch.columns["rank"].tolist(), batch.columns["severity"].tolist()
        texts = [batch.strings(*names).tolist() for names in (("cause", "causes"), ("detail", "details"))]
        evidence = json.loads(batch.strings("evidence_json", "evidence").tolist()[0])
        is_slow = texts[0][0] == "slow_link" and severity[0] > 0
        named = {rank for rank, level in zip(ranks, severity, strict=True) if rank != JOB and level > 0}
        out[first] = (texts[1][0] if is_slow else "", evidence if is_slow else {}, named)
    return out


def flows(evidence):
    return {(flow["from"], flow["to"]) for flow in evidence["flows"]}
