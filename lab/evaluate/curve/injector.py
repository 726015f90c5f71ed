"""Injects faults into steps drawn from a recording, and counts names in drawn steps without a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil

import numpy as np

from drumline.lab.evaluate.curve.healthy_windows import EvaluatedWindows, HealthyCount
from drumline.lab.evaluate.curve.injection import KINDS, SIZES, Delays, Injection, delays
from drumline.lab.evaluate.curve.job_rows import Floats, JobRows, StepTimes
from drumline.lab.evaluate.curve.measured_fault import MeasuredFault
from drumline.lab.evaluate.curve.recall import FaultPhase, by_window, recall
from drumline.lab.evaluate.curve.replayed_batches import CallColumns, batches, call_columns
from drumline.lab.evaluate.curve.replayed_job import ReplayedJob, replay
from drumline.lab.evaluate.curve.resampling import resample
from drumline.lab.evaluate.curve.timings import StepTimings, Synchronisation
from drumline.lab.evaluate.curve.true_cost import TrueCost
from drumline.lab.evaluate.verdict_rows import verdict_rows
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.offline import verdicts
from drumline.views.verdict.verdict_rows import VerdictRow

Progress = Callable[[str], None]

#: Healthy windows before an injected fault; windows of a job of healthy steps alone.
BEFORE, JOB_WINDOWS = 20, 100
#: An injected fault lasts for so many windows at least and at most, else for the first of the points in seconds.
DURING, MOST_DURING, DURING_S = 11, 20, 12.0


@dataclass(frozen=True)
class DrawPlan:
    """States how much is injected and drawn. `replicates`: faults of each kind and size."""

    windows: int = 3000
    replicates: int = 2
    seed: int = 0
    kinds: tuple[str, ...] = KINDS
    sizes: tuple[float, ...] = SIZES


@dataclass
class Injector:
    """Injects faults into steps that are drawn from runs of healthy ones, and lets the verdict code read the result."""

    rows: JobRows
    runs: list[list[StepTimings]]
    config: StragglerConfig
    plan: DrawPlan
    step_ns: float
    loss: float | None

    @property
    def during(self) -> int:
        """Return the windows that a fault lasts for."""
        return min(MOST_DURING, max(DURING, ceil(DURING_S * 1e9 / self.step_ns / self.config.window_steps) + 1))

    @property
    def count(self) -> int:
        """Return the number of faults."""
        return len(self.plan.kinds) * len(self.plan.sizes) * self.plan.replicates

    def faults(self) -> Iterator[MeasuredFault]:
        """Yield each injected fault; those of one replicate over the same steps, which a run without fault has too."""
        window = self.config.window_steps
        transfers = self._transfers()
        for replicate in range(self.plan.replicates):
            seed = 1000 * self.plan.seed + replicate
            dice = np.random.default_rng([seed, 1])
            first = BEFORE * window + int(dice.integers(window))
            kinds = list(product(self.plan.kinds, self.plan.sizes))
            ranks = dice.integers(self.rows.ranks, size=len(kinds)).tolist()
            injections = [Injection(k, s, r, first, seed) for (k, s), r in zip(kinds, ranks, strict=True)]
            steps = resample(self.runs, window * (BEFORE + self.during), seed)
            added = delays([None, *injections], len(steps), self.rows.ranks, self.step_ns, transfers)
            job, calls = replay(steps, added), call_columns(steps)
            for scenario, injection in enumerate(injections, 1):
                rows = self._verdicts(job, scenario, added, calls)
                yield self._measured(injection, job.step_times()[[0, scenario]], rows)

    def count_healthy(self, healthy: HealthyCount, coverage: EvaluatedWindows, progress: Progress) -> None:
        """Count names in windows of healthy steps, of jobs of JOB_WINDOWS windows each."""
        window, number = self.config.window_steps, 0
        while healthy.windows < self.plan.windows and number <= self.plan.windows // JOB_WINDOWS:
            count = min(JOB_WINDOWS, self.plan.windows - healthy.windows)
            steps = resample(self.runs, count * window, 1000 * self.plan.seed + 500 + number)
            added = delays([None], len(steps), self.rows.ranks, 1.0, 1.0)
            rows = self._verdicts(replay(steps, added), 0, added, call_columns(steps))
            healthy.add(by_window(rows).values())
            coverage.add(rows, [at * window for at in range(count)])
            number += 1
            progress(f"{healthy.windows} of {self.plan.windows} healthy windows, {healthy.named} with a name")

    def _verdicts(self, job: ReplayedJob, scenario: int, added: Delays, calls: CallColumns) -> list[VerdictRow]:
        published = batches(job, scenario, added, calls, self.rows.source, self.rows.communicators)
        return list(verdict_rows(verdicts(published, self.config)))

    def _measured(self, injection: Injection, times: Floats, rows: list[VerdictRow]) -> MeasuredFault:
        """Score a fault. `times`: [without and with it, steps], ns."""
        is_link = injection.kind == "link"
        last = times.shape[1] - 1
        fault = FaultPhase(
            injection.kind,
            injection.first_step,
            last,
            () if is_link else (injection.rank,),
            ("slow_link",) if is_link else (),
        )
        steps = np.arange(last + 1)
        result = recall(fault, rows, StepTimes(steps, times[1], np.zeros_like(steps)))
        without, faulty = times[:, injection.first_step :]
        cost = float(faulty.sum() / without.sum() - 1)
        pairs = []
        for first, stated in result.stated:
            healthy, slow = times[:, first : first + self.config.window_steps].sum(axis=1)
            pairs.append((float(1 - healthy / slow), stated))
        return MeasuredFault(fault, TrueCost(cost, cost, cost, cost), self.loss, result, tuple(pairs), injection)

    def _transfers(self) -> float:
        """Return the time that the transfers of a step take a rank, the median; ns."""
        totals = [
            sum(
                float(o.floor_ns.mean()) * len(o.members)
                for o in step.operations
                if o.synchronisation != Synchronisation.NONE
            )
            for run in self.runs
            for step in run
        ]
        return float(np.median(totals)) / self.rows.ranks
