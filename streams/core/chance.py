"""Limits beyond which chance alone goes in one window of a thousand, and spreads that one odd value does not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

_NORMAL = NormalDist()
#: Midpoints of the integral of `beyond`.
_ANGLES = (np.arange(64) + 0.5) * math.pi / 128
#: The longest period of what `spread` does not take for chance.
PERIOD = 4
#: Part of the values, the largest, that `spread_of_sizes` takes no larger than the next one.
ODD = 8
#: The same of `tail_limit`, of the values beyond the median.
TAIL_ODD = 4


def beyond(times: float, degrees: int) -> float:
    """Return the chance of a value beyond `times` a spread that is known from so many values (Student's t)."""
    return float(np.exp(-degrees / 2 * np.log1p(times**2 / degrees / np.sin(_ANGLES) ** 2)).mean())


@lru_cache(1024)
def times_spread(chance: float, degrees: int) -> float:
    """Return the multiple of a spread that is exceeded with this chance."""
    low, high = 0.0, 1.0 / chance
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle, degrees) > chance else (low, middle)
    return high


def spread_of_sizes(sizes: Sequence[float]) -> tuple[float, int]:
    """Return the spread of values around 0 whose sizes are given, and the number of values that it rests on.

    The largest eighth counts as large as the next one, and the rest is scaled as the normal distribution demands.
    """
    ordered = np.sort(np.array(sizes, float))
    count, odd = len(ordered), len(ordered) // ODD
    mean_square = 1.0
    if odd:
        ordered[-odd:] = ordered[-odd - 1]
        part = odd / count
        bound = _NORMAL.inv_cdf(1.0 - part / 2)
        mean_square = 1.0 - part - 2 * bound * _NORMAL.pdf(bound) + part * bound**2
    return math.sqrt(float((ordered**2).mean()) / mean_square), count - odd


def tail_limit(sizes: Sequence[float], chance: float) -> float:
    """Return the size that is exceeded with this chance, if those beyond the median fall off exponentially.

    They fall off faster where values are sums of many. The largest quarter of those counts as beyond the next one only.
    """
    ordered = np.sort(np.array(sizes, float))
    median = float(np.median(ordered))
    beyond_median = ordered[ordered > median] - median
    count = len(beyond_median)
    known = count - count // TAIL_ODD
    if not known:
        return median
    mean = (beyond_median[:known].sum() + (count - known) * beyond_median[known - 1]) / known
    return float(median + mean * known * ((count / len(ordered) / chance) ** (1 / known) - 1))


def spread(values: NDArray[np.float64]) -> float:
    """Return the spread of values around their median, 0 without any that is known. The oddest counts as the second.

    What comes in every second, third or fourth of them is no chance: sums of as many neighbours may vary less. What
    comes in a row of them varies: all values count, as a median of deviations would not see fewer than half.
    """
    known = values[np.isfinite(values)]
    if not len(known):
        return 0.0
    most = max(2, min(PERIOD, len(known) // 3))
    sums = [np.convolve(known, np.ones(n) / math.sqrt(n), "valid") for n in range(1, min(most, len(known)) + 1)]
    return min(map(_deviation, sums))  # of independent values, sums by the root vary as they do


def _deviation(values: NDArray[np.float64]) -> float:
    sizes = np.sort(np.abs(values - np.median(values)))
    sizes[-1:] = sizes[-2:-1] if len(sizes) > 1 else 0.0
    return math.sqrt(float((sizes**2).sum()) / max(1, len(sizes) - 1))
