"""Evidence of an inspection: its weight against chance, and how a verdict states it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from drumline.streams.core.chance import LEAST
from drumline.streams.stragglers.inspection.sampled_stacks import Inspection

#: Power of the likelihood ratio, POWER * chance ** (POWER - 1): an inspection without a difference halves the odds, so
#: that a rank whose lateness alone is evidence enough stays named.
POWER = 0.5
#: A difference of less than this part of what the rank costs does not explain it, and counts for nothing.
EXPLAINED = 0.5


def next_inspection(inspections: Mapping[int, Inspection], after: int, window: int) -> tuple[int, Inspection] | None:
    """Return the newest inspection of those that windows after `after`, up to `window`, asked for, with its window.

    `inspections`: by the window that asked for each.
    """
    fitting = [number for number in inspections if after < number <= window]
    return (max(fitting), inspections[max(fitting)]) if fitting else None


def odds_ratio(inspection: Inspection, cost: float) -> float:
    """Return by what an inspection multiplies the odds: its mean without a reason is 1 at most (Vovk and Wang).

    `cost`: what the rank costs, as a share of the step.
    """
    if inspection.at and inspection.share - inspection.peer_share < EXPLAINED * cost:
        return 1.0
    return POWER * math.pow(min(max(inspection.chance, LEAST), 1.0), POWER - 1.0)


def stated(inspection: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the evidence of a rank states of its inspection: a difference that is chance is none."""
    shares = {name: round(float(inspection[name]), 3) for name in ("share", "peer_share")}
    return {"at": inspection["at"] if inspection["ratio"] > 1.0 else "", **shares, "peer": inspection["peer"]}
