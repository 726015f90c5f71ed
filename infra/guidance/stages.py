"""Text about the stages of a pipeline that differ by design, from the evidence of the job's row."""

from __future__ import annotations

import json
from typing import Any


def unequal_stages_text(evidence: str) -> str:
    """Return which stage works longest and what it costs, as a sentence; "" where none does. `evidence`: JSON."""
    try:
        stages: Any = json.loads(evidence)["stages"]
        rank, longest, count = (int(stages[name]) for name in ("rank", "longest", "of"))
        longer, bubble = float(stages["longer"]), float(stages["bubble"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return ""
    return (
        f"Stage {longest} of 0 to {count - 1}, that of rank {rank}, works {longer:.0%} longer than the other stages: "
        f"the bubble costs {bubble:.0%} of the time, by the job's design; no rank is at fault."
    )
