"""Alignment of ranks whose clocks differ: all ranks leave a collective together, so its ends are one moment."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from drumline.streams.lateness.collective_rows import KIND, LOCKSTEP

Row = Mapping[str, Any]


def clock_offsets(ranks: Iterable[int], collectives: Iterable[Row]) -> dict[int, int]:
    """Return rank -> ns to add to its times, so that common collectives end together; the lowest rank's clock counts.

    Two ranks differ by the median over the collectives that they share. Ranks without a common one are joined by those
    between them. A rank that nothing joins to the lowest one is left out.
    """
    ends: dict[tuple[str, int, int], dict[int, int]] = defaultdict(dict)
    for row in collectives:
        if KIND.get(row["operation"]) == LOCKSTEP:
            key = (row["communicator"], row["step"], row["ordinal"])
            ends[key][row["rank"]] = row["begin"] + row["ns"]
    differences: dict[tuple[int, int], list[int]] = defaultdict(list)
    for of_ranks in ends.values():
        first = min(of_ranks)
        for rank, end in of_ranks.items():
            if rank != first:
                differences[first, rank].append(of_ranks[first] - end)
    neighbours: dict[int, dict[int, int]] = defaultdict(dict)
    for (first, rank), values in differences.items():
        shift = round(median(values))
        neighbours[first][rank], neighbours[rank][first] = shift, -shift
    start = min(ranks)
    offsets, waiting = {start: 0}, deque([start])
    while waiting:
        known = waiting.popleft()
        for rank, shift in sorted(neighbours[known].items()):
            if rank not in offsets:
                offsets[rank] = offsets[known] + shift
                waiting.append(rank)
    return offsets
