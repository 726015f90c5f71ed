"""Replays recorded steps by a max-plus model, with faults or without: who waits for whom, for how long.

A rank's gap before each operation is its own work. A collective ends for all members when the last has entered, plus
the transfer; a receive ends when the send has come. All else follows: a fault moves what waits for it, and no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from drumline.lab.evaluate.curve.injection import Delays, delays
from drumline.lab.evaluate.curve.job_rows import Floats
from drumline.lab.evaluate.curve.timings import StepTimings, Synchronisation


@dataclass(frozen=True, eq=False)
class ReplayedJob:
    """Holds the times of several scenarios over the same steps; ns from the begin.

    Attributes:
        start, duration: [scenarios, calls], the calls of the members of each operation in the order of the steps.
        ends: [scenarios, steps + 1, ranks], when each rank ended a step; first when it began.
    """

    steps: Sequence[StepTimings]
    start: Floats
    duration: Floats
    ends: Floats

    def step_times(self) -> Floats:
        """Return [scenarios, steps] the job's time of each step: the median over ranks."""
        return np.asarray(np.median(np.diff(self.ends, axis=1), axis=2))


def replay(steps: Sequence[StepTimings], added: Delays) -> ReplayedJob:
    """Return the times of the scenarios. All ranks begin together."""
    scenarios, count, ranks = added.spread.shape
    calls = sum(len(operation.members) for step in steps for operation in step.operations)
    start, duration = np.empty((scenarios, calls)), np.empty((scenarios, calls))
    ends, now, at = np.zeros((scenarios, count + 1, ranks)), np.zeros((scenarios, ranks)), 0
    for number, step in enumerate(steps):
        spread, opening, link = added.spread[:, number], added.opening[:, number], added.link[:, number, None]
        for operation in step.operations:
            members = operation.members
            more = spread[:, members] * operation.spread + opening[:, members] * operation.opens
            entered = now[:, members] + operation.gap_ns + more
            is_transfer = operation.synchronisation != Synchronisation.NONE  # else it may be waiting
            floor = operation.floor_ns * (link if is_transfer else 1.0)
            if operation.synchronisation == Synchronisation.PEERS:
                end = entered.max(axis=1, keepdims=True) + floor
            else:
                end = entered + floor
                if operation.synchronisation == Synchronisation.SENDER:
                    end[:, 1] = np.maximum(end[:, 1], end[:, 0])
            columns = slice(at, at + len(members))
            start[:, columns], duration[:, columns] = entered, end - entered
            now[:, members] = np.maximum(now[:, members], end)
            at = columns.stop
        ends[:, number + 1] = now
    return ReplayedJob(steps, start, duration, ends)


@dataclass(frozen=True)
class Closeness:
    """States how closely an unmodified replay repeats the recording.

    Attributes:
        steps: replayed.
        step_p50, step_p95: error of a step's time, as a share of it.
        call_p95_us: error of an operation's duration.
        total: error of the time of all steps together, as a share.
    """

    steps: int
    step_p50: float
    step_p95: float
    call_p95_us: float
    total: float


def closeness(runs: Sequence[Sequence[StepTimings]]) -> Closeness | None:
    """Compare an unmodified replay of each run with the recording; None without a step."""
    errors, calls, replayed_ns, recorded_ns = list[Floats](), list[Floats](), 0.0, 0.0
    for run in runs:
        job = replay(run, delays([None], len(run), len(run[0].columns["step"]), 1.0, 1.0))
        recorded = np.concatenate([operation.duration_ns for step in run for operation in step.operations])
        times = job.step_times()[0]
        true = np.array([np.median(step.columns["gpu_duration_ns"]) for step in run])
        errors.append(np.abs(times - true) / true)
        calls.append(np.abs(job.duration[0] - recorded))
        replayed_ns, recorded_ns = replayed_ns + times.sum(), recorded_ns + true.sum()
    if not errors:
        return None
    steps, all_calls = np.concatenate(errors), np.concatenate(calls)
    p50, p95 = np.percentile(steps, (50, 95))
    return Closeness(
        len(steps), float(p50), float(p95), float(np.percentile(all_calls, 95)) / 1e3, replayed_ns / recorded_ns - 1
    )
