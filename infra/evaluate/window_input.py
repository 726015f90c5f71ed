"""A recorded job cut into windows of steps, as every method here gets it: the producers' columns, no phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drumline.infra.evaluate.scoring import WARNING, Row
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.replay.recording import measured_from
from drumline.producers.replay.trace import Trace, read_trace
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Job:
    """`first_steps` [W]: first step of each window that every rank has whole; window k of ours has the same steps.
    `derived` [R]: what each rank did, times in ns. A step lasts on the GPU from the end of the last collective called
    in the step before to the end of its own last (producers/step_budget.py)."""

    window_steps: int
    first_steps: Array
    derived: tuple[Derived, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """(R ranks, W windows)."""
        return len(self.derived), len(self.first_steps)

    def steps(self, rank: int) -> Table:
        """The rank's rows of gpu.step.v1 that lie in windows: W * window_steps, ascending."""
        table = self.derived[rank].steps
        return table.take(self.window_of(table["step"]) >= 0)

    def window_of(self, steps: Array) -> Array:
        """Index of the window that each step number lies in; -1 = none."""
        first = steps // self.window_steps * self.window_steps
        at = np.clip(np.searchsorted(self.first_steps, first), 0, max(0, len(self.first_steps) - 1))
        known = (self.first_steps[at] == first) if len(self.first_steps) else np.zeros(len(steps), bool)
        return np.where(known & (steps >= 0), at, -1)

    def step_at(self, rank: int, times: Array) -> Array:
        """Index into `steps(rank)` of the step that was running on the GPU at each time; -1 = none."""
        steps = self.steps(rank)
        if not steps.rows:
            return np.full(len(times), -1, np.int64)
        start = steps["gpu_start_ns"]
        at = np.searchsorted(start, times, side="right") - 1
        inside = (at >= 0) & (times < (start + steps["gpu_duration_ns"])[np.maximum(at, 0)])
        return np.where(inside, at, -1)

    def lengths(self) -> Floats:
        """[R, W]: ns of GPU time that each rank's window lasts."""
        each = [self.steps(r)["gpu_duration_ns"].reshape(-1, self.window_steps).sum(1) for r in range(self.shape[0])]
        return np.array(each, np.float64).reshape(self.shape)


def read_job(folder: Path, window_steps: int) -> Job:
    """A recorded folder; its phases are not read. Raises BadTrace."""
    return job_of(read_trace(folder, topics={Topic.KERNEL, Topic.COLLECTIVE, Topic.STEP}), window_steps)


def job_of(trace: Trace, window_steps: int) -> Job:
    """The windows of a trace that was read with all kernel columns."""
    since = measured_from(trace)
    derived = tuple(derive(a, since_ns=at) for a, at in zip(trace.activities, since, strict=True))
    common = reduce(np.intersect1d, [d.steps["step"] for d in derived])
    window, count = np.unique(common // window_steps, return_counts=True)
    return Job(window_steps, window[count == window_steps] * window_steps, derived)


def is_nccl(kernels: Table) -> Bools:
    """Which rows of a kernel table are NCCL's."""
    named = nccl.is_kernel(kernels.dictionaries["names"])
    return np.asarray(named[kernels["name"]] if kernels.rows else np.zeros(0, bool))


def rows(job: Job, named: Bools, score: Floats, cause: str | Sequence[Sequence[str]] = "unknown") -> Iterator[Row]:
    """A row per rank and window for the judge. `named`, `score`, `cause`: [R, W]; a named rank counts as a warning."""
    for (rank, window), is_named in np.ndenumerate(named):
        first = int(job.first_steps[window])
        said = cause if isinstance(cause, str) else cause[rank][window]
        severity, share = (WARNING, float(score[rank, window])) if is_named else (0, 0.0)
        yield Row(first, first + job.window_steps - 1, rank, severity, said if is_named else "ok", "", share)
