"""Tails of distributions: how likely is it that a rank is late so often by chance."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


@lru_cache(4096)
def late_at_least(hits: int, count: int, begins: float, stays: float) -> float:
    """Return the probability of `hits` late steps or more of `count`.

    A step after one that is not late is late with probability `begins`, a step after a late one with `stays`.
    """
    if hits <= 0:
        return 1.0
    late, other = np.zeros(hits + 1), np.zeros(hits + 1)
    late[1] = begins / (begins + 1.0 - stays)
    other[0] = 1.0 - late[1]
    for _ in range(count - 1):
        now = late * stays + other * begins
        other = other * (1.0 - begins) + late * (1.0 - stays)
        late[1:], late[0] = now[:-1], 0.0
        late[-1] += now[-1]
    return float(late[-1] + other[-1])


@lru_cache(4096)
def at_least(hits: int, count: int, seen: float, missed: float) -> float:
    """Return the probability of `hits` or more of `count`, at a rate known from `seen` hits and `missed` others.

    The rate has the beta distribution, so the number the beta-binomial one.
    """
    if hits <= 0:
        return 1.0
    known = math.lgamma(seen + missed) - math.lgamma(seen) - math.lgamma(missed)
    known += math.lgamma(count + 1) - math.lgamma(seen + missed + count)

    def exactly(k: int) -> float:
        ways = math.lgamma(k + 1) + math.lgamma(count - k + 1)
        return math.exp(known - ways + math.lgamma(seen + k) + math.lgamma(missed + count - k))

    return min(1.0, sum(exactly(k) for k in range(hits, count + 1)))
