"""JobJitter: ranks are late by turns, none of them consistently, and it costs the job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import Floats, Ints, WindowData, step_length

#: The job's row names at most so many ranks, those that cost it most.
RANKS = 8


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


def find_jitter(data: WindowData, behind_ns: Floats, config: StragglerConfig) -> JobJitter | None:
    """Return what the latest rank of each step cost, in a window that names no rank; None below `config.suspect`.

    The latest step is left out: one checkpoint is no turn. `behind_ns`: of the window's attribution.
    """
    length = step_length(data)
    met = np.isfinite(behind_ns).any(0) & np.isfinite(length)
    if met.sum() < 2:
        return None
    late = np.nan_to_num(behind_ns[:, met])
    latest = late.argmax(0)
    costs = np.clip(late.max(0), 0.0, length[met])
    costs[costs.argmax()] = 0.0
    time = float(length[met].sum())
    lost = np.bincount(latest, weights=costs, minlength=len(late))
    share = float(lost.sum()) / time
    if share < config.suspect:
        return None
    ranks: Ints = data.ranks
    order = [index for index in np.argsort(-lost, kind="stable").tolist() if lost[index] > 0.0][:RANKS]
    return JobJitter({int(ranks[index]): float(lost[index]) / time for index in order}, share * time, share)
