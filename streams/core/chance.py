"""Chances of values without a reason, how much they speak against chance, and a spread that one odd value leaves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Midpoints of the integral of `beyond`.
_ANGLES = (np.arange(64) + 0.5) * math.pi / 128
#: The longest period of what `spread` does not take for chance.
PERIOD = 4
#: Part of earlier sizes, the largest, that `chance_of_sizes` knows to be larger than the others only: some may be odd.
ODD = 8
#: Sizes that `chance_of_sizes` rests on at least.
ASSUMED = 2
#: Bets of `likelihood_ratios` that chances lie below one in so many, again and again, with this part of the stake.
BETS, STAKE = np.array([4.0, 16.0]), 0.75
#: Power of its last ratio, for chances that are much smaller.
POWER = 0.15
#: Ratios for each chance.
RATIOS = len(BETS) + 1
#: No chance is smaller: below it, what is assumed of the tails counts for more than the value.
LEAST = 1e-12


def beyond(times: float, degrees: int) -> float:
    """Return the chance of a value beyond `times` a spread that is known from so many values (Student's t)."""
    return float(np.exp(-degrees / 2 * np.log1p(times**2 / degrees / np.sin(_ANGLES) ** 2)).mean())


def common_sizes(sizes: Floats) -> Floats:
    """Return those above 0, rising, without the largest eighth, which may be odd."""
    positive = np.sort(sizes[sizes > 0.0])
    return positive[: len(positive) - len(positive) // ODD]


def chance_of_sizes(values: Floats, sizes: Floats, assumed: float, least: float) -> Floats:
    """Return the chance of a size as large as each value, by earlier sizes, which are exponential to both sides of 0.

    Their mean is known from as many as there are: what is exponential by a Gamma distribution is Pareto's (Lomax).
    `assumed`: size of those that are missing where there are fewer than ASSUMED. `least`: of their mean.
    """
    common, positive, count = common_sizes(np.abs(sizes)), int((sizes > 0.0).sum()), int((sizes != 0.0).sum())
    known = max(len(common), ASSUMED)
    total = common.sum() + (count - len(common)) * common[-1:].sum() + (known - len(common)) * assumed
    part = (positive + 1) / (len(sizes) + 1)
    chance = part * (1.0 + np.maximum(values, 0.0) / max(total, known * least)) ** -known
    return np.where(values > 0.0, chance, 1.0)


def likelihood_ratios(chance: Floats, together: Floats) -> Floats:
    """Return [RATIOS, ...] how much likelier values of such chances are if there is a reason than without one.

    Without a reason the mean of each ratio is 1. A bet b pays b * (1 - chance) ** (b - 1) for the stake: the most for
    chances that are moderate in one window after the other. The last is e * chance ** (e - 1) with the power e.
    `together`: neighbours that may have all in common count as one: each counts as its root (Hoelder's inequality).
    """
    bets = BETS.reshape(-1, *[1] * np.ndim(chance))
    paid = 1.0 - STAKE + STAKE * bets * (1.0 - chance) ** (bets - 1.0)
    powers = POWER * np.maximum(chance, LEAST) ** (POWER - 1.0)
    return np.asarray(np.concatenate([paid, powers[None]]) ** (1.0 / together))


def spread(values: Floats) -> float:
    """Return the spread of values around their median, 0 without any that is known. The oddest counts as the second.

    What comes in every second, third or fourth of them is no chance: sums of as many neighbours may vary less. What
    comes in a row of them varies: all values count, as a median of deviations would not see fewer than half.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0
    most = max(2, min(PERIOD, len(known) // 2))
    sums = [np.convolve(known, np.ones(n) / math.sqrt(n), "valid") for n in range(1, min(most, len(known)) + 1)]
    return min(map(_deviation, sums))  # of independent values, sums by the root vary as they do


def _deviation(values: Floats) -> float:
    sizes = np.sort(np.abs(values - np.median(values)))
    sizes[-1:] = sizes[-2:-1] if len(sizes) > 1 else 0.0
    return math.sqrt(float((sizes**2).sum()) / max(1, len(sizes) - 1))
