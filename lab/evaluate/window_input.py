"""Cuts a recorded job into windows of steps, the input of every method: producers' columns, without phases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drumline.lab.evaluate.scoring import WARNING
from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.rows import Derived, derive
from drumline.producers.replay.recording import measured_from
from drumline.producers.replay.trace import Trace, read_trace
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic
from drumline.views.verdict.verdict_rows import VerdictRow

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Job:
    """Holds a recorded job.

    first_steps [W]: first step of each window that every rank has completely; they equal those of drumline's verdicts.
    derived [R]: derived rows of each rank, times in ns.

    On the GPU, a step lasts from the end of the last collective called in the step before to the end of its last own
    one (producers/derive/steps/budget.py).
    """

    window_steps: int
    first_steps: Array
    derived: tuple[Derived, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Return (R ranks, W windows)."""
        return len(self.derived), len(self.first_steps)

    def steps(self, rank: int) -> Table:
        """Return the rank's rows of gpu.step.v1 that lie in windows: W * window_steps, ascending."""
        table = self.derived[rank].steps
        return table.take(self.window_of(table["step"]) >= 0)

    def window_of(self, steps: Array) -> Array:
        """Return the index of the window of each step number; -1 for none."""
        first = steps // self.window_steps * self.window_steps
        at = np.clip(np.searchsorted(self.first_steps, first), 0, max(0, len(self.first_steps) - 1))
        known = (self.first_steps[at] == first) if len(self.first_steps) else np.zeros(len(steps), bool)
        return np.where(known & (steps >= 0), at, -1)

    def step_at(self, rank: int, times: Array) -> Array:
        """Return the index into `steps(rank)` of the step that ran on the GPU at each time; -1 for none."""
        steps = self.steps(rank)
        if not steps.rows:
            return np.full(len(times), -1, np.int64)
        start = steps["gpu_start_ns"]
        at = np.searchsorted(start, times, side="right") - 1
        inside = (at >= 0) & (times < (start + steps["gpu_duration_ns"])[np.maximum(at, 0)])
        return np.where(inside, at, -1)

    def lengths(self) -> Floats:
        """Return the GPU time of each rank's windows: [R, W], ns."""
        lengths = [self.steps(r)["gpu_duration_ns"].reshape(-1, self.window_steps).sum(1) for r in range(self.shape[0])]
        return np.array(lengths, np.float64).reshape(self.shape)


def read_job(folder: Path, window_steps: int) -> Job:
    """Read a recorded folder without its phases. Raises BadTrace."""
    return job_of(read_trace(folder, topics={Topic.KERNEL, Topic.COLLECTIVE, Topic.STEP}), window_steps)


def job_of(trace: Trace, window_steps: int) -> Job:
    """Cut a trace that was read with all kernel columns."""
    since = measured_from(trace)
    derived = tuple(derive(a, since_ns=at) for a, at in zip(trace.activities, since, strict=True))
    common = reduce(np.intersect1d, [d.steps["step"] for d in derived])
    window, count = np.unique(common // window_steps, return_counts=True)
    return Job(window_steps, window[count == window_steps] * window_steps, derived)


def is_nccl(kernels: Table) -> Bools:
    """Return a mask of the rows that are kernels of NCCL."""
    named = nccl.is_kernel(kernels.dictionaries["names"])
    return np.asarray(named[kernels["name"]] if kernels.rows else np.zeros(0, bool))


def rows(
    job: Job, named: Bools, score: Floats, cause: str | Sequence[Sequence[str]] = "unknown"
) -> Iterator[VerdictRow]:
    """Yield a verdict row per rank and window.

    `named`, `score`, `cause`: [R, W]; a named rank counts as a warning.
    """
    for (rank, window), is_named in np.ndenumerate(named):
        first = int(job.first_steps[window])
        named_cause = cause if isinstance(cause, str) else cause[rank][window]
        severity, share = (WARNING, float(score[rank, window])) if is_named else (0, 0.0)
        yield VerdictRow(
            first, first + job.window_steps - 1, rank, severity, named_cause if is_named else "ok", "", share
        )
