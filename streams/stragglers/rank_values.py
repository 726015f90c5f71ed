"""Values that the head of a verdict keeps of ranks: once each, as most ranks of a large job are alike.

With an entry for each rank, the heads of 64 windows of 16,384 ranks took half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value", bound=Hashable)
#: A value, and the first and last of each run of ranks that have it; as JSON has them.
Group = Sequence[Any]


def by_value(values: Mapping[int, Value]) -> Iterator[tuple[Value, list[int]]]:
    """Yield each value with the first and last of each run of its ranks, rising."""
    of_value: dict[Value, list[int]] = {}
    for rank, value in values.items():
        of_value.setdefault(value, []).append(rank)
    for value, ranks in of_value.items():
        rising = np.sort(np.array(ranks, np.int64))
        ends = np.flatnonzero(np.diff(rising) > 1)
        runs = np.stack([rising[np.append(0, ends + 1)], rising[np.append(ends, len(rising) - 1)]], axis=1)
        yield value, runs.ravel().tolist()


def ranks_of(runs: Sequence[int]) -> Iterator[int]:
    """Yield the ranks of a group's runs."""
    for first, last in zip(runs[::2], runs[1::2], strict=True):
        yield from range(first, last + 1)
