"""The rows of gpu.step.v1 that the straggler stage keeps."""

from __future__ import annotations

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import Rows
from drumline.streams.lateness.state import NCCL

#: Columns that verdicts use; ns except `kernels` and `blocks`, -1 = unknown.
BUDGET = (
    *("gpu_duration_ns", "compute_ns", "compute_overlapped_ns", "copy_ns", "comm_exposed_ns", "idle_ns"),
    *("copy_pageable_ns", "sync_ns", "input_ns", "load_ns", "gc_ns", "checkpoint_ns", "kernels", "blocks"),
)
#: `light`: 1 = measured by NCCL, without other kernels.
STEP_ROW = np.dtype(
    [("step", "<i8"), ("start_ns", "<i8"), ("duration_ns", "<i8"), ("skipped", "u1"), ("light", "u1")]
    + [(name, "<i8") for name in BUDGET]
)


def step_rows(batch: Batch) -> Rows:
    """Return the STEP_ROW rows of a gpu.step.v1 batch that have a step number."""
    columns, numbered = batch.columns, batch.columns["step"] >= 0
    if not numbered.all():
        columns = {name: values[numbered] for name, values in columns.items()}
    rows = np.zeros(len(columns["step"]), STEP_ROW)
    for name in ("step", "start_ns", "duration_ns", "skipped", *BUDGET):
        rows[name] = columns[name]
    rows["light"] = batch.envelope.get("source") == NCCL
    return rows


def latest_steps(rows: Rows) -> Rows:
    """Return the rows sorted by step, each step once: of a number that comes twice, the row with the later start."""
    if (rows["step"][1:] > rows["step"][:-1]).all():
        return rows
    rows = rows[np.lexsort((rows["start_ns"], rows["step"]))]
    return rows[np.r_[rows["step"][1:] != rows["step"][:-1], True]]
