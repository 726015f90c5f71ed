"""Made-up jobs whose hosts jitter, as windows of steps without producers; and faults among the jitter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.baseline import load_baseline
from drumline.streams.stragglers.analysis.lateness_history import load_lateness
from drumline.streams.stragglers.analysis.verdict import WindowContext, WindowVerdict, evaluate_window
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, Floats, WindowData
from drumline.streams.stragglers.step_rows import BUDGET

#: A launch-bound step as recorded, and how much compute varies.
STEP_NS, NOISE = 30e6, 0.003
#: Compute of a step of the job whose hosts launch ahead; a checkpoint; both in steps.
BUSY, CHECKPOINT = 0.8, 5.0
Dice = np.random.Generator


def _drift(dice: Dice, ranks: int, steps: int, share: float, memory: float) -> Floats:
    """Lognormal lateness, correlated with that of the step before."""
    drift, out = dice.standard_normal(ranks), np.zeros((steps, ranks))
    for step in range(steps):
        drift = memory * drift + np.sqrt(1 - memory**2) * dice.standard_normal(ranks)
        out[step] = np.exp(drift)
    return share / 2 * out


def _runs(dice: Dice, ranks: int, steps: int, share: float, mean_steps: float) -> Floats:
    """One rank is late for some steps, by an exponential amount, then another."""
    out, step = np.zeros((steps, ranks)), 0
    while step < steps:
        run, rank, size = dice.geometric(1 / mean_steps), dice.integers(ranks), dice.exponential(share)
        out[step : step + run, rank] = size * (1 + 0.2 * dice.standard_normal(len(out[step : step + run])))
        step += run
    return np.maximum(out, 0.0)


def _tails(dice: Dice, ranks: int, steps: int, share: float) -> Floats:
    return share / 2 * dice.pareto(2.0, (steps, ranks))


def _pauses(dice: Dice, ranks: int, steps: int, share: float, period: int) -> Floats:
    """Some steps of some rank are longer: garbage collection, a slow read."""
    hit = dice.random((steps, ranks)) < 1 / (period * ranks)
    return hit * dice.lognormal(np.log(5 * share), 0.7, (steps, ranks))


def _checkpoints(dice: Dice, ranks: int, steps: int, share: float, period: int) -> Floats:
    """Rank 0 alone saves for all, now and then."""
    out = _drift(dice, ranks, steps, share / 3, 0.0)
    out[period // 2 :: period, 0] += CHECKPOINT
    return out


def _launches(dice: Dice, ranks: int, steps: int, share: float, sync_steps: int) -> Floats:
    """Hosts launch ahead of the GPUs, which wait for each other, until all wait for the GPU."""
    host = 1 + share * dice.standard_gamma(2.0, (steps, ranks)) / 2 + _drift(dice, ranks, steps, 0.02, 0.97)
    hosts, gpus, out = np.zeros(ranks), 0.0, np.zeros((steps, ranks))
    for step in range(steps):
        hosts = (np.maximum(hosts, gpus) if step % sync_steps == 0 else hosts) + host[step]
        ready = np.maximum(gpus + BUSY, hosts)
        out[step] = ready - gpus - BUSY
        gpus = float(ready.max())
    return out


def _none(_dice: Dice, ranks: int, steps: int, _share: float) -> Floats:
    return np.zeros((steps, ranks))


#: Name -> lateness of each rank in each step, as a share of the step; of (dice, ranks, steps, share).
HEALTHY: dict[str, Callable[[Dice, int, int, float], Floats]] = {
    "no jitter": _none,
    "independent steps": partial(_drift, memory=0.0),
    "drift of 3 steps": partial(_drift, memory=0.7),
    "drift of 20 steps": partial(_drift, memory=0.95),
    "heavy tails": _tails,
    "turns of 3 steps": partial(_runs, mean_steps=3),
    "turns of 10 steps": partial(_runs, mean_steps=10),
    "pauses, one in 20 steps": partial(_pauses, period=20),
    "pauses, one in 100 steps": partial(_pauses, period=100),
    "checkpoints of rank 0": partial(_checkpoints, period=100),
    "launches, waited for in each step": partial(_launches, sync_steps=1),
    "launches, 50 steps ahead": partial(_launches, sync_steps=50),
}
#: Turns as long as a window and longer: for so long the rank is a straggler.
LONG: dict[str, Callable[[Dice, int, int, float], Floats]] = {
    "turns of 20 steps": partial(_runs, mean_steps=20),
    "turns of 100 steps": partial(_runs, mean_steps=100),
}


def lateness(kind: str, ranks: int, steps: int, share: float, seed: int = 0) -> Floats:
    """Return [steps, ranks] ns by which the host of a rank is late in a step of a healthy job."""
    return (HEALTHY | LONG)[kind](np.random.default_rng(seed), ranks, steps, share) * STEP_NS


def windows(
    idle_ns: Floats, more_ns: Floats | None = None, window_steps: int = 20, seed: int = 0
) -> Iterator[WindowData]:
    """Yield each window of a job whose ranks all meet at the end of a step. `more_ns`: compute beyond the others'."""
    dice, (steps, ranks) = np.random.default_rng(seed), idle_ns.shape
    for first in range(0, steps - window_steps + 1, window_steps):
        idle = idle_ns[first : first + window_steps].T
        compute = STEP_NS * (1 + NOISE * dice.standard_normal(idle.shape))
        compute += 0.0 if more_ns is None else more_ns[first : first + window_steps].T
        busy = idle + compute
        exposed = busy.max(0) - busy + 0.01 * STEP_NS
        known = {"idle_ns": idle, "compute_ns": compute, "comm_exposed_ns": exposed, "gpu_duration_ns": busy + exposed}
        known |= {"kernels": np.full(idle.shape, 1e3), "blocks": np.full(idle.shape, 1e4)}
        budget = {name: known.get(name, np.zeros(idle.shape)) for name in BUDGET}
        wait, none = exposed - exposed.min(0), np.zeros(len(idle), WORST_ROW)
        group = CommunicatorWindow("c", ranks, np.arange(ranks), wait, wait.max(0) - wait, none, np.zeros(wait.shape))
        steps = np.arange(first, first + window_steps)
        yield WindowData(np.arange(ranks), steps, budget, [group], number=first // window_steps)


def verdicts(job: Iterator[WindowData], window_steps: int = 20) -> list[WindowVerdict]:
    """Return the verdict on each window, each with those before it as its past."""
    config, out = StragglerConfig(window_steps=window_steps), list[WindowVerdict]()
    for data in job:
        first = max(0, len(out) - config.history_windows)
        before = out[first:]
        baseline = load_baseline((verdict.baseline for verdict in before), config)
        history = load_lateness(dict(enumerate((verdict.lateness for verdict in before), first)), config)
        out.append(evaluate_window(data, WindowContext(baseline, history), config))
    return out


def named(verdict: WindowVerdict) -> set[int]:
    """Return the ranks that a verdict names."""
    return {row.rank for row in verdict.rows if row.names_rank}


def fault(kind: str, steps: int, first: int, cost: float) -> NDArray[np.float64]:
    """Return [steps] ns that a fault costs a rank from a step on; `every 4th step` as much on average."""
    out = np.zeros(steps)
    if kind == "every 4th step":
        out[first::4] = 4 * cost * STEP_NS
    else:
        out[first:] = cost * STEP_NS
    return out
