"""Healthy jobs whose ranks are late by turns, as windows of steps without producers; and faults among the turns."""

from __future__ import annotations

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.baseline import load_baseline
from drumline.streams.stragglers.analysis.turn_history import load_turns
from drumline.streams.stragglers.analysis.verdict import WindowContext, evaluate_window
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, WindowData
from drumline.streams.stragglers.step_rows import BUDGET

STEP_NS = 60e6
NOISE = 0.003


def _ar1(random, ranks, steps, share, memory):
    """Lateness drifts: lognormal, and correlated with the step before."""
    drift, out = random.standard_normal(ranks), np.zeros((steps, ranks))
    for step in range(steps):
        drift = memory * drift + np.sqrt(1 - memory**2) * random.standard_normal(ranks)
        out[step] = np.exp(drift)
    return share / 2 * out


def _runs(random, ranks, steps, share, mean_steps):
    """One rank is late for some steps, by an exponential amount, then another: real trainers do so."""
    out, step = np.zeros((steps, ranks)), 0
    while step < steps:
        run, rank = random.geometric(1 / mean_steps), random.integers(ranks)
        size = random.exponential(share)
        out[step : step + run, rank] = size * (1 + 0.2 * random.standard_normal(len(out[step : step + run])))
        step += run
    return np.maximum(out, 0.0)


def _pauses(random, ranks, steps, share, period):
    """Some steps of some rank are longer: garbage collection, a slow read."""
    hit = random.random((steps, ranks)) < 1 / (period * ranks)
    return hit * random.lognormal(np.log(5 * share), 0.7, (steps, ranks))


#: Name -> lateness of each rank in each step, as a share of the step; of (random, ranks, steps, share).
KINDS = {
    "independent": lambda *given: _ar1(*given, 0.0),
    "drift of 3 steps": lambda *given: _ar1(*given, 0.7),
    "drift of 20 steps": lambda *given: _ar1(*given, 0.95),
    "heavy tails": lambda random, ranks, steps, share: share / 2 * random.pareto(2.0, (steps, ranks)),
    "turns of 3 steps": lambda *given: _runs(*given, 3),
    "turns of 20 steps": lambda *given: _runs(*given, 20),
    "turns of 100 steps": lambda *given: _runs(*given, 100),
    "a pause in 20 steps": lambda *given: _pauses(*given, 20),
    "a pause in 100 steps": lambda *given: _pauses(*given, 100),
}


def lateness(kind, ranks, steps, share, seed=0):
    """[steps, ranks] ns by which the host of a rank is late in a step."""
    return KINDS[kind](np.random.default_rng(seed), ranks, steps, share) * STEP_NS


def windows(late, window_steps, seed=0):
    """Yield each window of a DDP job whose ranks all meet at the end of a step."""
    random, (steps, ranks) = np.random.default_rng(seed), late.shape
    for first in range(0, steps - window_steps + 1, window_steps):
        idle = late[first : first + window_steps].T
        compute = STEP_NS * (1 + NOISE * random.standard_normal(idle.shape))
        busy = idle + compute
        exposed = busy.max(0) - busy + 0.01 * STEP_NS
        known = {"idle_ns": idle, "compute_ns": compute, "comm_exposed_ns": exposed, "gpu_duration_ns": busy + exposed}
        budget = {name: known.get(name, np.zeros(idle.shape)) for name in BUDGET}
        budget |= {"kernels": np.full(idle.shape, 1000.0), "blocks": np.full(idle.shape, 10_000.0)}
        wait = exposed - exposed.min(0)
        worst = np.zeros(wait.shape, LATENESS_ROW)
        group = CommunicatorWindow("c", ranks, np.arange(ranks), wait, wait.max(0) - wait, worst, np.zeros(wait.shape))
        yield WindowData(np.arange(ranks), np.arange(first, first + window_steps), budget, [group])


def verdicts(late, window_steps, seed=0):
    """The verdict on each window, each with those before it as its past."""
    config, out = StragglerConfig(window_steps=window_steps), []
    for data in windows(late, window_steps, seed):
        last = out[-config.history_windows :]
        context = WindowContext(
            load_baseline((verdict.baseline for verdict in last), config),
            load_turns([verdict.turns for verdict in last], config),
        )
        out.append(evaluate_window(data, context, config))
    return out


def named(verdict):
    return {row.rank for row in verdict.rows if row.names_rank}
