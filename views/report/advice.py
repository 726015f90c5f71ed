"""Advice about the episodes of a job, once for each cause."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.infra.guidance.entry import cause_text
from drumline.views.report.data import Row
from drumline.views.report.text import action


def advice(episodes: Sequence[Row], job: str) -> list[str]:
    """Return what to do about each episode: in full where its cause comes first, after that where it stands.

    "" = nothing is known of its cause.
    """
    texts: list[str] = []
    known: dict[tuple[str, str], str] = {}
    for row in episodes:
        cause = row["cause"], row["detail"]
        if cause in known:
            texts.append(known[cause] and f"As for {cause_text(*cause)} above.")
            continue
        known[cause] = action(*cause, job)
        texts.append(known[cause])
    return texts
