"""The rows of gpu.lateness.v1 that the straggler stage keeps."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.bounds.limits import HIDDEN, KINDS
from drumline.schemas.record_table import RecordTable
from drumline.streams.core.records import Rows, as_json
from drumline.streams.lateness.collective_rows import LATENESS_ROW, OPERATIONS, slice_of

_UNREAD = frozenset({"exposed_wait_ns", "floor_ns", "bytes"})
#: One rank in one step, as this stage keeps it: LATENESS_ROW without the quarter that no verdict reads.
KEPT_ROW = np.dtype([column for column in LATENESS_ROW.descr if column[0] not in _UNREAD])
#: The part of a step's rows that is no slice but all of them.
WHOLE = -1
#: The lists of a step without any, as a stored value has them.
NO_LISTS = b'{"kinds":[],"hidden":[]}'


def lateness_rows(table: RecordTable) -> Rows:
    """Return the KEPT_ROW rows of gpu.lateness.v1."""
    rows = np.zeros(table.rows, KEPT_ROW)
    for name in KEPT_ROW.names or ():
        rows[name] = table.columns[name]
    known = [_operations(tuple(names)) for names in table.lists("operations")]
    begins = [*accumulate((len(numbers) for numbers in known[:-1]), initial=0)]  # of each part's among all
    operation = table.columns["worst_operation"] + np.repeat(begins, table.counts)
    rows["worst_operation"] = np.concatenate(known)[operation]
    return rows


@lru_cache(256)
def _operations(names: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return the numbers of operations: each record has them by name."""
    return np.array([OPERATIONS.index(name) for name in names], "u1")


def lists_of_steps(envelope: Mapping[str, Any]) -> dict[int, bytes]:
    """Return step -> its lists as JSON: `kinds` (operation, bytes, number, sum of floors), and what shows hidden waits
    (HIDDEN). Written directly: as Python's lists first, they cost twice as much.
    """
    kinds: dict[int, list[str]] = {}
    names = [_as_name(name) for name in envelope["operations"]]
    for step, operation, size, number, floors_ns in zip(*(envelope[name] for name in KINDS), strict=True):
        kinds.setdefault(step, []).append(f"[{names[operation]},{size},{number},{floors_ns}]")
    of_hidden = zip(*(envelope.get(name, ()) for name in HIDDEN), strict=True)
    hidden = {step: f"{parts_ns},{changes_ns},{spreads_ns}" for step, parts_ns, changes_ns, spreads_ns in of_hidden}
    return {
        step: f'{{"kinds":[{",".join(kinds.get(step, ()))}],"hidden":[{hidden.get(step, "")}]}}'.encode()
        for step in kinds | hidden
    }


@lru_cache(256)
def _as_name(operation: str) -> str:
    return as_json(operation).decode()


def part_of(envelope: Mapping[str, Any]) -> int:
    """Return the number of the slice of ranks that a batch is about, or WHOLE."""
    ranks = envelope["rank_list"]
    return WHOLE if len(ranks) >= int(envelope["ranks"]) else slice_of(min(ranks, default=0))
