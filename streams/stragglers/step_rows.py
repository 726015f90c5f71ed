"""The rows of gpu.step.v1 that the straggler stage keeps."""

from __future__ import annotations

import numpy as np

from drumline.schemas.record_table import Ints, RecordTable
from drumline.streams.core.records import Rows
from drumline.streams.lateness.received import NCCL

#: Columns that verdicts use; ns except `kernels` and `blocks`, -1 = unknown.
BUDGET = (
    *("gpu_duration_ns", "compute_ns", "compute_overlapped_ns", "copy_ns", "comm_exposed_ns", "idle_ns"),
    *("copy_pageable_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns", "kernels", "blocks"),
)
#: `light`: 1 = measured by NCCL, without other kernels.
STEP_ROW = np.dtype(
    [("rank", "<i4"), ("step", "<i8"), ("start_ns", "<i8"), ("duration_ns", "<i8"), ("skipped", "u1"), ("light", "u1")]
    + [(name, "<i8") for name in BUDGET]
)


def step_rows(table: RecordTable) -> tuple[Rows, Ints]:
    """Return the STEP_ROW rows of gpu.step.v1 that have a step number, and the part of each."""
    columns, part_of = table.columns, table.part_of
    rows = np.zeros(table.rows, STEP_ROW)
    for name in ("step", "start_ns", "duration_ns", "skipped", *BUDGET):
        rows[name] = columns[name]
    rows["rank"], rows["light"] = table.ranks, table.has_text("source", NCCL)[part_of]
    numbered = rows["step"] >= 0
    return (rows, part_of) if numbered.all() else (rows[numbered], part_of[numbered])


def rows_between(rows: Rows, first_step: int, last_step: int) -> Rows:
    """Return the rows of steps between two, both included."""
    inside = (rows["step"] >= first_step) & (rows["step"] <= last_step)
    chosen: Rows = rows if inside.all() else rows[inside]
    return chosen


def latest_steps(rows: Rows) -> Rows:
    """Return the rows sorted by rank and step, each step once: of one that comes twice, the row with the later start.

    Of two with one start it is the one behind, as it came later.
    """
    rank, step = rows["rank"], rows["step"]
    if ((rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (step[1:] > step[:-1]))).all():
        return rows
    rows = rows[np.lexsort((rows["start_ns"], step, rank))]
    is_last = np.ones(len(rows), bool)
    is_last[:-1] = (rows["step"][1:] != rows["step"][:-1]) | (rows["rank"][1:] != rows["rank"][:-1])
    return rows[is_last]
