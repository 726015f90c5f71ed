"""Rounds in which hosts meet in disjoint pairs. Pure.

A round has n // 2 pairs at most, and n hosts have n (n - 1) / 2. So n - 1 rounds cover all (n of them where n is odd),
and log2(n) rounds let each host meet log2(n) others: enough to name a slow host, too few to see every link.
"""

from __future__ import annotations

from math import ceil, log2
from random import Random

Pair = tuple[int, int]
#: Most hosts of which all pairs meet: 31 rounds of less than a second.
ALL_PAIRS = 32


def all_rounds(count: int) -> list[list[Pair]]:
    """Return rounds in which each two of `count` hosts meet once: the circle method."""
    seats = [*range(count)] + [-1] * (count % 2)  # whoever meets -1 rests
    out = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        out.append([(min(pair), max(pair)) for pair in met if -1 not in pair])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return out


def chosen_rounds(count: int, seed: int) -> list[list[Pair]]:
    """Return all rounds, or of more than ALL_PAIRS hosts log2 of their number, others for another `seed`."""
    rounds = all_rounds(count)
    if count <= ALL_PAIRS:
        return rounds
    return Random(seed).sample(rounds, ceil(log2(count)))
