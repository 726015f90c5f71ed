"""Collects the collective and step rows of a recorded job into arrays, and the median step times of its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

Floats = NDArray[np.float64]

#: Columns of gpu.step.v1 that are kept; ns except the step and the counts.
STEP_COLUMNS = tuple(column.name for column in model(Topic.STEP).columns)
COLLECTIVE_COLUMNS = ("step", "ordinal", "bytes", "start_ns", "duration_ns", "covered_ns")


@dataclass(frozen=True, eq=False)
class JobRows:
    """Holds the rows of one job, those without a step number left out.

    Attributes:
        source: "nccl" for the light tier, as in the envelope.
        steps: rank -> columns of gpu.step.v1, ascending by step.
        collectives: rank -> columns; `communicator` and `operation` are indexes into `communicators`, OPERATIONS.
    """

    ranks: int
    source: str
    communicators: tuple[str, ...]
    steps: dict[int, dict[str, Array]]
    collectives: dict[int, dict[str, Array]]

    def step_times(self) -> StepTimes:
        """Return the time of each step that all ranks have: the median over the ranks of its GPU interval."""
        rows = [columns for columns in self.steps.values() if len(columns["step"])]
        if not rows:
            return StepTimes(np.empty(0, np.int64), np.empty(0), np.empty(0, np.int64))
        common = rows[0]["step"]
        for columns in rows[1:]:
            common = np.intersect1d(common, columns["step"])
        at = [np.searchsorted(columns["step"], common) for columns in rows]
        times = np.array([columns["gpu_duration_ns"][index] for columns, index in zip(rows, at, strict=True)])
        first = rows[0]["gpu_start_ns"][at[0]]
        return StepTimes(common, np.median(times.astype(np.float64), axis=0), first)


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Holds the steps of a job, ascending; the time of each, and when it began by the clock of the first rank; ns."""

    step: Array
    time_ns: Floats
    start_ns: Array

    def between(self, first: int, last: int) -> Floats:
        """Return the times of the steps first..last."""
        return self.time_ns[(self.step >= first) & (self.step <= last)]

    def seconds(self, first: int, last: int) -> float:
        """Return the time from the begin of the step `first` to the end of `last`; s."""
        return float(self.between(first, last).sum()) / 1e9


def job_rows(batches: Iterable[Batch]) -> JobRows:
    """Return the rows of all batches of one job; of a step that comes twice, the later batch's row."""
    steps: dict[int, list[dict[str, Array]]] = {}
    collectives: dict[int, list[dict[str, Array]]] = {}
    names, source = dict[str, int](), ""
    for batch in batches:
        rank = int(batch.envelope.get("rank", -1))
        if batch.topic == Topic.STEP:
            source = str(batch.envelope.get("source") or source)
            steps.setdefault(rank, []).append({name: batch.columns[name] for name in STEP_COLUMNS})
        elif batch.topic == Topic.COLLECTIVE:
            number = names.setdefault(str(batch.envelope["communicator"]), len(names))
            code = np.array([OPERATIONS.index(name) for name in batch.envelope["operations"]] or [0], np.int64)
            columns = {name: batch.columns[name] for name in COLLECTIVE_COLUMNS}
            columns["operation"] = code[batch.columns["operation"]]
            columns["communicator"] = np.full(batch.rows, number)
            collectives.setdefault(rank, []).append(columns)
    return JobRows(
        len(steps),
        source,
        tuple(names),
        {rank: _ascending(parts) for rank, parts in sorted(steps.items())},
        {rank: _joined(parts) for rank, parts in sorted(collectives.items())},
    )


def _joined(parts: list[dict[str, Array]]) -> dict[str, Array]:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort((columns["start_ns"], columns["step"]))
    order = order[columns["step"][order] >= 0]
    return {name: column[order] for name, column in columns.items()}


def _ascending(parts: list[dict[str, Array]]) -> dict[str, Array]:
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    step = columns["step"]
    last = {int(number): at for at, number in enumerate(step) if number >= 0}
    order = np.array([last[number] for number in sorted(last)], np.int64)
    return {name: column[order] for name, column in columns.items()}
