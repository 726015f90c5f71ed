"""The rows of gpu.lateness.v1 that the straggler stage keeps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.limits import HIDDEN, KINDS
from drumline.streams.core.records import Rows
from drumline.streams.lateness.collective_join import LATENESS_ROW, OPERATIONS, slice_of

#: The part of a step's rows that is no slice but all of them.
WHOLE = -1
#: The lists of a step without any, as a stored value has them.
NO_LISTS = b'{"kinds":[],"hidden":[]}'


def lateness_rows(batch: Batch) -> Rows:
    """Return the LATENESS_ROW rows of a gpu.lateness.v1 batch."""
    rows = np.zeros(batch.rows, LATENESS_ROW)
    for name in LATENESS_ROW.names or ():
        rows[name] = batch.columns[name]
    rows["worst_operation"] = _operations(tuple(batch.envelope["operations"]))[batch.columns["worst_operation"]]
    return rows


@lru_cache(256)
def _operations(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return the numbers of operations: each record has them by name."""
    return np.array([OPERATIONS.index(name) for name in names], "u1")


def lists_of_steps(batch: Batch) -> dict[int, dict[str, list[Any]]]:
    """Return step -> its `kinds` (operation, bytes, number, sum of floors), and what shows hidden waits (HIDDEN)."""
    envelope = batch.envelope
    out: dict[int, dict[str, list[Any]]] = {}
    for step, operation, *rest in zip(*(envelope[name] for name in KINDS), strict=True):
        lists = out.setdefault(step, {"kinds": [], "hidden": []})
        lists["kinds"].append([envelope["operations"][operation], *rest])
    for step, *parts in zip(*(envelope.get(name, ()) for name in HIDDEN), strict=True):
        out.setdefault(step, {"kinds": [], "hidden": []})["hidden"] = parts
    return out


def part_of(batch: Batch) -> int:
    """Return the number of the slice of ranks that a batch is about, or WHOLE."""
    ranks = batch.envelope["rank_list"]
    return WHOLE if len(ranks) >= int(batch.envelope["ranks"]) else slice_of(min(ranks, default=0))
