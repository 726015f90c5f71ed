"""Measures the true cost of a fault from step times alone: its phase against the healthy phases beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.lab.evaluate.curve.job_rows import Floats, StepTimes

#: Bounds of the classes of cost, shares of a healthy step.
BOUNDS = (0.05, 0.10, 0.20, 0.40)
CLASSES = ("< 5 %", "5-10 %", "10-20 %", "20-40 %", "> 40 %")
REDRAWN = 1000
#: Steps that are drawn together, as steps that follow each other are alike.
BLOCK = 10


@dataclass(frozen=True)
class TrueCost:
    """States by how much a fault makes the steps of a job longer, as a share of a healthy step.

    Attributes:
        cost: by medians of step times; `low`, `high`: its 95 % bootstrap interval.
        mean_cost: by means, which see a fault of single steps too.
    """

    cost: float
    low: float
    high: float
    mean_cost: float

    @property
    def lost_share(self) -> float:
        """Return the share of the time of the faulty steps that is lost: of the means, as windows state it."""
        return max(0.0, self.mean_cost / (1 + self.mean_cost))


def cost_class(cost: float) -> str:
    """Return the class of a cost."""
    return CLASSES[int(np.searchsorted(BOUNDS, cost, side="right"))]


def true_cost(faulty: Floats, healthy: Floats, seed: int = 0) -> TrueCost | None:
    """Return the cost of a fault with its interval; None where one of the two has no step.

    `faulty`, `healthy`: times of steps in their order. The interval redraws blocks of neighbouring steps of each.
    """
    if not len(faulty) or not len(healthy):
        return None
    dice = np.random.default_rng(seed)
    drawn = np.median(_redrawn(faulty, dice), axis=1) / np.median(_redrawn(healthy, dice), axis=1) - 1
    low, high = np.percentile(drawn, (2.5, 97.5))
    cost = float(np.median(faulty) / np.median(healthy) - 1)
    return TrueCost(cost, float(low), float(high), float(np.mean(faulty) / np.mean(healthy) - 1))


def _redrawn(times: Floats, dice: np.random.Generator) -> Floats:
    """Return [REDRAWN, steps] times, drawn again in blocks."""
    length = min(BLOCK, max(1, len(times) // 3))
    blocks = -(-len(times) // length)
    first = dice.integers(len(times) - length + 1, size=(REDRAWN, blocks))
    index = (first[:, :, None] + np.arange(length)).reshape(REDRAWN, -1)
    return np.asarray(times[index[:, : len(times)]])


def beside(times: StepTimes, phase: tuple[int, int], healthy: list[tuple[int, int]]) -> Floats:
    """Return the times of the last healthy phase before a phase and of the first one after it."""
    before = [span for span in healthy if span[1] < phase[0]][-1:]
    after = [span for span in healthy if span[0] > phase[1]][:1]
    parts = [times.between(*span) for span in before + after]
    return np.concatenate(parts) if parts else np.empty(0)
