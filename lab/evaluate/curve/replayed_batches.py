"""Turns a replayed job into the batches that its producers would have published, of the tier that was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drumline.lab.evaluate.curve.injection import Delays
from drumline.lab.evaluate.curve.job_rows import COLLECTIVE_COLUMNS, STEP_COLUMNS, Floats
from drumline.lab.evaluate.curve.replayed_job import ReplayedJob
from drumline.lab.evaluate.curve.timings import StepTimings
from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array, filled, fit
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

#: Begin of a replayed job, ns since the epoch.
BEGIN_NS = 10**18
#: Steps of a batch.
FLUSH = 20


@dataclass(frozen=True, eq=False)
class CallColumns:
    """Holds what is the same in all scenarios of a replayed job: columns of its calls, as they lie in it.

    Attributes:
        recorded: columns of gpu.step.v1, [steps, ranks].
        parts: (rank, communicator, chunk) -> positions of its calls.
    """

    columns: dict[str, Array]
    recorded: dict[str, Array]
    parts: dict[tuple[int, int, int], Array]


def call_columns(steps: Sequence[StepTimings]) -> CallColumns:
    """Return the columns of these steps' calls; steps are numbered anew from 0."""
    calls = [(number, operation) for number, step in enumerate(steps) for operation in step.operations]
    sizes = [len(operation.members) for _, operation in calls]
    columns = {
        "rank": np.concatenate([operation.members for _, operation in calls]),
        "step": np.repeat([number for number, _ in calls], sizes),
        "covered_ns": np.concatenate([operation.covered_ns for _, operation in calls]),
    }
    for name in ("communicator", "operation", "ordinal", "bytes"):
        columns[name] = np.repeat([getattr(operation, name) for _, operation in calls], sizes)
    sends = np.concatenate([_codes(operation.operation, len(operation.members)) for _, operation in calls])
    columns["operation"] = np.where(sends >= 0, sends, columns["operation"])
    keys = np.stack([columns["rank"], columns["communicator"], columns["step"] // FLUSH])
    order = np.lexsort((np.arange(len(sends)), keys[2], keys[1], keys[0]))
    bounds = np.flatnonzero((np.diff(keys[:, order]) != 0).any(axis=0)) + 1
    parts = {tuple(keys[:, part[0]].tolist()): part for part in np.split(order, bounds)}
    recorded = {name: np.array([step.columns[name] for step in steps]) for name in STEP_COLUMNS}
    return CallColumns(columns, recorded, parts)


def _codes(operation: int, members: int) -> Array:
    """Return the operation of each member where a send is matched with its receive; -1: all have the same."""
    pair = OPERATIONS[operation] == "Send" and members == 2
    return np.array([OPERATIONS.index("Send"), OPERATIONS.index("Recv")] if pair else [-1] * members)


def batches(
    job: ReplayedJob,
    scenario: int,
    added: Delays,
    calls: CallColumns,
    source: str,
    communicators: Sequence[str],
) -> Iterator[tuple[int, Batch]]:
    """Yield (time in ns, batch) of one scenario, by time."""
    steps = _step_columns(job.ends[scenario], scenario, added, calls.recorded)
    start = np.rint(job.start[scenario]).astype(np.int64) + BEGIN_NS
    duration = np.maximum(np.rint(job.duration[scenario]).astype(np.int64), 0)
    count, ranks = steps["step"].shape
    by_chunk: dict[int, list[tuple[int, int]]] = {}
    for rank, communicator, chunk in calls.parts:
        by_chunk.setdefault(chunk, []).append((rank, communicator))
    for chunk in range(-(-count // FLUSH)):
        rows = slice(chunk * FLUSH, min(count, (chunk + 1) * FLUSH))
        last = rows.stop - 1
        now = int(job.ends[scenario, rows.stop].max()) + BEGIN_NS
        for rank in range(ranks):
            head = _envelope(rank, ranks, last, source)
            yield now, _batch(Topic.STEP, head, {name: column[rows, rank] for name, column in steps.items()})
        for rank, communicator in by_chunk.get(chunk, []):
            at = calls.parts[rank, communicator, chunk]
            columns = {name: calls.columns[name][at] for name in COLLECTIVE_COLUMNS if name in calls.columns}
            columns |= {"start_ns": start[at], "duration_ns": duration[at]}
            columns |= {"operation": calls.columns["operation"][at]}
            columns["covered_ns"] = np.minimum(columns["covered_ns"], duration[at])
            head = _envelope(rank, ranks, last, source)
            head |= {"communicator": communicators[communicator], "operations": list(OPERATIONS)}
            yield now, _batch(Topic.COLLECTIVE, head, columns)


def _envelope(rank: int, ranks: int, last: int, source: str) -> dict[str, object]:
    head: dict[str, object] = {"job": "replayed", "run": "r", "rank": rank, "local_rank": rank, "world_size": ranks}
    return head | {"host": "node-a", "gpu_uuid": f"GPU-{rank}", "complete_step": last, "source": source}


def _batch(topic: Topic, head: dict[str, object], columns: dict[str, Array]) -> Batch:
    rows = len(columns["step"])
    batch = Batch(topic, {**head, "rows": rows})
    batch.columns = {
        column.name: fit(column, columns[column.name], topic) if column.name in columns else filled(column, rows)
        for column in model(topic).columns
    }
    return batch


def _step_columns(ends: Floats, scenario: int, added: Delays, recorded: dict[str, Array]) -> dict[str, Array]:
    """Return the columns of gpu.step.v1, [steps, ranks]: own work as recorded and what was added, the rest waits."""
    ended = np.rint(ends).astype(np.int64)
    length = np.diff(ended, axis=0)
    work, compute, load = (np.rint(a[scenario]).astype(np.int64) for a in (added.work, added.compute, added.load))
    out = dict(recorded)
    out["step"] = np.repeat(np.arange(len(length))[:, None], length.shape[1], axis=1)
    out["start_ns"] = out["gpu_start_ns"] = ended[:-1] + BEGIN_NS
    out["duration_ns"] = out["gpu_duration_ns"] = length
    out["compute_ns"] = recorded["compute_ns"] + compute
    out["idle_ns"] = recorded["idle_ns"] + work - compute
    waited = length - recorded["gpu_duration_ns"] - work
    for name in ("comm_ns", "comm_exposed_ns"):
        out[name] = np.where(recorded[name] < 0, recorded[name], np.maximum(recorded[name] + waited, 0))
    out["load_ns"] = np.where(recorded["load_ns"] < 0, recorded["load_ns"], recorded["load_ns"] + load)
    out["skipped"] = np.zeros_like(out["step"])
    return out
