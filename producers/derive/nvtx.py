"""NVTX ranges from markers: pairs of start and end, nested by time."""

from __future__ import annotations

import numpy as np

from drumline.producers.activity.activity import MARKER_END, MARKER_START, end_ns
from drumline.producers.activity.table import Table
from drumline.schemas.columns import Array


def ranges(markers: Table) -> tuple[Table, int]:
    """Return columns of gpu.range.v1 (step still -1) sorted by start, and the number of ranges without an end.

    A start and the next end with the same id are one range. CUPTI gives no thread, so a range's parent is the innermost
    one that contains it in time, whatever thread opened it (autograd's ranges nest in the step that way).
    """
    flags = markers["flags"]
    order = np.lexsort((markers["time_ns"], markers["id"]))
    order = order[(flags[order] & (MARKER_START | MARKER_END)) != 0]
    opens = (flags[order] & MARKER_START) != 0
    same = markers["id"][order][1:] == markers["id"][order][:-1]
    pair = np.flatnonzero(opens[:-1] & ~opens[1:] & same)
    first, second = order[pair], order[pair + 1]
    start = markers["time_ns"][first]
    duration = markers["time_ns"][second] - start
    id_ = markers["id"][first]
    by_start = np.lexsort((id_, -duration, start))
    first = first[by_start]
    table = Table(
        {
            "name": markers["name"][first],
            "domain": markers["domain"][first],
            "start_ns": start[by_start],
            "duration_ns": duration[by_start],
            "id": id_[by_start],
        },
        markers.dictionaries,
    )
    parent, depth = nesting(table["start_ns"], end_ns(table))
    parent_id = np.where(parent >= 0, table["id"][parent], 0) if table.rows else np.empty(0, np.uint32)
    columns = {
        **table.columns,
        "parent_id": parent_id.astype(np.uint32),
        "depth": depth.astype(np.uint16),
        "step": np.full(table.rows, -1, np.int64),
    }
    return Table(columns, table.dictionaries), int(opens.sum()) - len(pair)


def nesting(start: Array, end: Array) -> tuple[Array, Array]:
    """Return (parent, depth) of ranges sorted by (start, -end).

    The parent is the nearest earlier range that ends no sooner; -1 = none. Pointer jumping replaces a stack: everything
    between i and its candidate ends before i does, and so does everything between a candidate that ends too soon and
    its own candidate. So the candidate's candidate is next.
    """
    parent = np.arange(len(start)) - 1
    while True:
        short = np.flatnonzero((parent >= 0) & (end[parent] < end))
        if len(short) == 0:
            break
        parent[short] = parent[parent[short]]
    depth = np.zeros(len(start), np.int64)
    up = parent
    while (has_parent := up >= 0).any():
        depth += has_parent
        up = np.where(has_parent, parent[up], -1)
    return parent, depth
