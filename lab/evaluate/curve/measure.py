"""Measures one recording: its own faults and healthy windows, and faults injected into its healthy steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.lab.evaluate.curve.healthy_windows import EvaluatedWindows, HealthyCount, windows_inside
from drumline.lab.evaluate.curve.injector import DrawPlan, Injector, Progress
from drumline.lab.evaluate.curve.job_rows import JobRows, StepTimes
from drumline.lab.evaluate.curve.measured_fault import MeasuredFault
from drumline.lab.evaluate.curve.recall import FaultPhase, Recall, recall
from drumline.lab.evaluate.curve.replayed_job import Closeness, closeness
from drumline.lab.evaluate.curve.timings import StepTimings, runs_of_steps
from drumline.lab.evaluate.curve.true_cost import TrueCost, beside, true_cost
from drumline.lab.evaluate.curve.window_loss import window_losses
from drumline.streams.core.thresholds import StragglerConfig
from drumline.views.verdict.verdict_rows import VerdictRow

#: Steps that a recording needs before steps are drawn from it.
MIN_STEPS = 20


@dataclass
class Curve:
    """Holds all that is measured of one recording in one tier.

    `loss`: median share that its healthy windows lose. `by_timings`: recall of its faults without samples and hooks.
    """

    name: str
    tier: str
    ranks: int
    window_steps: int
    step_ms: float = 0.0
    loss: float | None = None
    faults: list[MeasuredFault] = field(default_factory=list)
    by_timings: list[Recall] = field(default_factory=list)
    healthy: HealthyCount = field(default_factory=HealthyCount)
    coverage: EvaluatedWindows = field(default_factory=EvaluatedWindows)
    closeness: Closeness | None = None
    injected: list[MeasuredFault] = field(default_factory=list)
    resampled: HealthyCount = field(default_factory=HealthyCount)
    resampled_coverage: EvaluatedWindows = field(default_factory=EvaluatedWindows)


def measure(
    name: str,
    rows: JobRows,
    evaluated: Sequence[VerdictRow],
    evaluated_by_timings: Sequence[VerdictRow],
    phases: Sequence[Mapping[str, Any]],
    recorded_window: int,
    config: StragglerConfig,
    plan: DrawPlan,
    progress: Progress,
) -> Curve:
    """Return the curve of a recording.

    `evaluated`: verdicts on the recording in windows of `recorded_window` steps; `evaluated_by_timings`: the same
    without samples of GPUs and processes and without hooks. `config`: of injected faults.
    """
    curve = Curve(name, "light" if rows.source == "nccl" else "CUPTI", rows.ranks, recorded_window)
    times = rows.step_times()
    spans = [(int(p["first_step"]), int(p["last_step"])) for p in phases if not _is_fault(p)]
    runs = runs_of_steps(rows, spans) if rows.ranks > 1 else []
    curve.loss = _median_loss(runs, recorded_window)
    for phase in phases:
        if _is_fault(phase):
            cost, loss = _costs(phase, times, spans, runs, recorded_window, plan.seed)
            cost_and_loss = cost, curve.loss if loss is None else loss
            curve.faults.append(_recorded(phase, cost_and_loss, times, evaluated))
            curve.by_timings.append(_recorded(phase, cost_and_loss, times, evaluated_by_timings).recall)
    curve.healthy.add(windows_inside(evaluated, spans))
    curve.coverage.add(evaluated, whole_windows(times, recorded_window))
    if sum(map(len, runs)) < MIN_STEPS:
        return curve
    curve.closeness = closeness(runs)
    healthy = [step for run in runs for step in run]
    curve.step_ms = float(np.median([np.median(step.columns["gpu_duration_ns"]) for step in healthy])) / 1e6
    injector = Injector(rows, runs, config, plan, curve.step_ms * 1e6, curve.loss)
    for number, fault in enumerate(injector.faults()):
        curve.injected.append(fault)
        progress(f"{name}, {curve.tier}: {number + 1} of {injector.count} injected faults")
    injector.count_healthy(curve.resampled, curve.resampled_coverage, lambda text: progress(f"{name}: {text}"))
    return curve


def whole_windows(times: StepTimes, window_steps: int) -> list[int]:
    """Return the first steps of the windows whose steps all ranks have."""
    windows, count = np.unique(times.step // window_steps, return_counts=True)
    return [int(window) * window_steps for window in windows[count == window_steps]]


def _is_fault(phase: Mapping[str, Any]) -> bool:
    return bool(phase["fault_ranks"] or phase.get("accepted_causes"))


def _median_loss(runs: Sequence[Sequence[StepTimings]], window_steps: int) -> float | None:
    losses = window_losses(runs, window_steps)
    return float(np.median(losses)) if losses else None


def _costs(
    phase: Mapping[str, Any],
    times: StepTimes,
    spans: list[tuple[int, int]],
    runs: list[list[StepTimings]],
    window_steps: int,
    seed: int,
) -> tuple[TrueCost | None, float | None]:
    """Return the true cost of a recorded fault, and what the healthy windows beside it lose."""
    first, last = int(phase["first_step"]), int(phase["last_step"])
    cost = true_cost(times.between(first, last), beside(times, (first, last), spans), seed)
    near = [span for span in spans if span[1] < first][-1:] + [span for span in spans if span[0] > last][:1]
    inside = [run for run in runs if any(low <= run[0].step <= high for low, high in near)]
    return cost, _median_loss(inside, window_steps)


def _recorded(
    phase: Mapping[str, Any],
    cost_and_loss: tuple[TrueCost | None, float | None],
    times: StepTimes,
    evaluated: Sequence[VerdictRow],
) -> MeasuredFault:
    cost, loss = cost_and_loss
    fault = FaultPhase(
        str(phase["phase"]),
        int(phase["first_step"]),
        int(phase["last_step"]),
        tuple(int(rank) for rank in phase["fault_ranks"]),
        tuple(phase.get("accepted_causes", ())),
    )
    result = recall(fault, evaluated, times)
    stated = [share for _, share in result.stated]
    pairs = ((cost.lost_share, float(np.mean(stated))),) if cost and stated else ()
    return MeasuredFault(fault, cost, loss, result, pairs)
