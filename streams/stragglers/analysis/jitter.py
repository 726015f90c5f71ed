"""JobJitter: ranks are late by turns, none of them consistently, and it costs the job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.turns import StepLosses
from drumline.streams.stragglers.analysis.window_data import Ints

#: The job's row names at most so many ranks, those that cost it most.
RANKS = 8
#: Part of what turns cost that a rank must have to be one of those that take turns.
TAKES_PART = 0.1


@dataclass(frozen=True, slots=True)
class JobJitter:
    """Holds what ranks cost the job that are late by turns.

    Attributes:
        ranks: rank -> its part of `share`, the largest first.
        lost_ns: over the window.
        share: of the window's time.
    """

    ranks: dict[int, float]
    lost_ns: float
    share: float

    @property
    def detail(self) -> str:
        """Return the ranks that take turns, in their order."""
        most = [rank for rank, part in self.ranks.items() if part >= TAKES_PART * self.share][:RANKS]
        return f"rank{'s' * (len(most) > 1)} {' '.join(map(str, sorted(most)))}"


def find_jitter(ranks: Ints, steps: StepLosses, attribution: Attribution, config: StragglerConfig) -> JobJitter | None:
    """Return what the latest rank of each step cost, in a window that names no rank; None below `config.suspect`."""
    losses = steps.losses
    time = steps.step_ns * losses.shape[1]
    if not time > 0.0:
        return None
    lost = np.bincount(losses.argmax(0), weights=np.clip(losses.max(0), 0.0, steps.step_ns), minlength=len(ranks))
    late = attribution.share >= config.suspect
    lost = np.where(late, np.maximum(lost, attribution.lost_ns), lost)
    share = min(1.0, float(lost.sum()) / time)
    if share < config.suspect:
        return None
    order = [index for index in np.argsort(-lost, kind="stable").tolist() if lost[index] > 0.0][:RANKS]
    return JobJitter({int(ranks[index]): float(lost[index]) / time for index in order}, share * time, share)
