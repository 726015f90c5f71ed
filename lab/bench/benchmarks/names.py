"""Measures how often healthy windows name a rank, and how soon a late rank is named, on made-up jobs with jitter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from drumline.lab.bench.jittery_jobs import HEALTHY, LONG, STEP_NS, fault, lateness, named, verdicts, windows
from drumline.lab.bench.result import BenchReport, Progress

RANKS, SHARES, WINDOW = (2, 4, 8), (0.05, 0.15, 0.3), 20
#: Jitter among which faults begin, share of it, and what the fault costs a step: as much as recorded ones, or little.
AMONG = (("no jitter", 0.0, 0.05), ("independent steps", 0.15, 0.8), ("turns of 3 steps", 0.1, 0.8),
         ("drift of 3 steps", 0.05, 0.8), ("launches, waited for in each step", 0.1, 0.8))  # fmt: skip
FAULTS = ("idle", "compute", "every 4th step")
#: Healthy windows before a fault: of a job that has just begun, and of others. Windows of the fault.
YOUNG, OLDER, DURING = 5, (12, 40), 6
#: A rank late from a job's first step on, while all ranks' steps vary together; noise of each rank besides.
TOGETHER, NOISES, FROM_FIRST, DURING_FIRST = 0.2, (0.0, 0.05), 0.15, 12
#: Windows in which a job has no past to be compared with, or little.
FIRST = 8
MOST_PER_1000, MOST_DELAY = 1.0, 3.0
REDRAWN = 2000


def bench_names(count: int, seeds: Sequence[int] = (0,), progress: Progress = lambda _: None) -> BenchReport:
    """Measure false names in `count` windows of each healthy job, and the delay of each fault's name.

    `seeds`: of the jobs; rules were chosen by seeds up to 19, and are checked by others.
    """
    report = BenchReport("names", "made-up jobs of 2, 4 and 8 ranks with jitter of 5 to 30 % of a step", "none")
    hits_of, jitter = _healthy(count, seeds, progress)
    for kind, jobs in hits_of.items():
        report.add(f"{kind}: windows with a name", 1000 * float(jobs.mean()), "of 1,000")
    healthy = np.concatenate([hits_of[kind] for kind in HEALTHY])
    report.add("healthy windows", healthy.size, "")
    report.add("healthy windows with a name", 1000 * healthy.mean(), "of 1,000", target=MOST_PER_1000, at_most=True)
    drawn = np.random.default_rng(seeds[0]).integers(len(healthy), size=(REDRAWN, len(healthy)))
    low, high = np.percentile(1000 * healthy.mean(1)[drawn].mean(1), (2.5, 97.5))
    report.add("the same, 95 % interval", high, "of 1,000", text=f"{low:.2f} to {high:.2f} of 1,000")
    report.add(f"the same, first {FIRST} windows of a job", 1000 * healthy[:, :FIRST].mean(), "of 1,000")
    report.add("windows with the job's jitter", jitter, "")
    for ages, name, target in ((OLDER, "", MOST_DELAY), ((YOUNG,), "of young jobs: ", None)):
        results = [_delays(ages, seed, progress) for seed in seeds]
        delays, wrong = [delay for delays, _ in results for delay in delays], sum(count for _, count in results)
        _add_delays(report, name, delays, DURING, target)
        report.add(f"{name}other ranks named meanwhile", wrong, "windows")
    for noise in NOISES:
        delays = [delay for seed in seeds for delay in _from_first(noise, seed)]
        _add_delays(report, f"from the first step on, own steps vary by {noise:.0%}: ", delays, DURING_FIRST, None)
    report.notes.append(
        "Turns of 20 steps and more are not among the healthy windows: a rank that is late for a whole window is a "
        "straggler for so long. The window in which a fault begins is the first. Faults among jitter cost 0.8 of a "
        "step on average, as those recorded; without jitter 0.05. They begin after 12 or 40 "
        "windows, in young jobs after 5. From the first step on they cost 0.15, and all ranks' steps vary by 20 % "
        "together."
    )
    report.notes.append(
        f"{healthy.size:,} windows resolve {1000 / healthy.size:.2g} of 1,000; the interval is that of "
        f"{len(healthy):,} jobs drawn again, as names come in runs of windows."
    )
    return report


def _healthy(count: int, seeds: Sequence[int], progress: Progress) -> tuple[dict[str, NDArray[np.bool_]], int]:
    """Return kind -> [jobs, windows] which windows name a rank, and the number of windows with the job's jitter."""
    out, jitter, hits = dict[str, NDArray[np.bool_]](), 0, 0
    for number, kind in enumerate((*HEALTHY, *LONG)):
        jobs = list[list[bool]]()
        for seed, (at, (ranks, share)) in product(seeds, enumerate(product(RANKS, SHARES))):
            done = f"{number + 1} of {len(HEALTHY) + len(LONG)} kinds of healthy jobs, {kind}: job {len(jobs) + 1}"
            progress(f"{done} of {len(seeds) * len(RANKS) * len(SHARES)}, {hits} windows with a name")
            late = lateness(kind, ranks, WINDOW * count, share, seed=_seed(seed, number, at))
            result = verdicts(windows(late, seed=_seed(seed, number, at)))
            jobs.append([bool(named(verdict)) for verdict in result])
            hits += sum(jobs[-1])
            jitter += sum(verdict.rows[0].cause.cause == "jitter" for verdict in result)
        out[kind] = np.array(jobs)
    return out, jitter


def _add_delays(report: BenchReport, name: str, delays: Sequence[int | None], most: int, target: float | None) -> None:
    """Add how many faults were named, and how late. `most`: windows of a fault."""
    named_percent = 100 * sum(delay is not None for delay in delays) / len(delays)
    p95 = float(np.percentile([delay or most + 1 for delay in delays], 95))
    report.add(f"{name}faults", len(delays), "")
    report.add(f"{name}faults named", named_percent, "%", target=None if target is None else 100)
    report.add(f"{name}windows until the name, p95", p95, "windows", target=target, at_most=True)


def _from_first(noise: float, seed: int) -> list[int | None]:
    """Return the windows until a rank is named that is late in each step from the first one on."""
    delays, steps = list[int | None](), WINDOW * DURING_FIRST
    for shape, ranks in product(FAULTS, RANKS):
        dice = np.random.default_rng(_seed(seed, 98, ranks))
        together = np.maximum(TOGETHER * dice.standard_normal((steps, 1)), -0.9)
        more = STEP_NS * (together + noise * dice.standard_normal((steps, ranks)))
        idle = np.zeros((steps, ranks))
        (more if shape == "compute" else idle)[:, 1] += fault(shape, steps, 0, FROM_FIRST)
        hits = [at for at, verdict in enumerate(verdicts(windows(idle, more)), 1) if 1 in named(verdict)]
        delays.append(hits[0] if hits else None)
    return delays


def _delays(ages: Sequence[int], seed: int, progress: Progress) -> tuple[list[int | None], int]:
    """Return the windows until each fault is named (None: never), and windows that name another rank.

    `ages`: healthy windows before a fault; each fault comes after each of them.
    """
    delays: list[int | None] = []
    wrong, dice = 0, np.random.default_rng(_seed(seed, 99, ages[0]))
    for number, (kind, share, cost) in enumerate(AMONG, 50):
        for shape, ranks, before in product(FAULTS, RANKS, ages):
            progress(f"{shape} among {kind}, {ranks} ranks, after {before} windows")
            steps, first = WINDOW * (before + DURING), WINDOW * before + int(dice.integers(WINDOW))
            idle = lateness(kind, ranks, steps, share, seed=_seed(seed, number, ranks))
            more = np.zeros((steps, ranks))
            (more if shape == "compute" else idle)[:, 1] += fault(shape, steps, first, cost)
            result = verdicts(windows(idle, more, seed=_seed(seed, number, ranks)))[before:]
            hits = [at for at, verdict in enumerate(result, 1) if 1 in named(verdict)]
            delays.append(hits[0] if hits else None)
            wrong += sum(bool(named(verdict) - {1}) for verdict in result)
    return delays, wrong


def _seed(seed: int, number: int, at: int) -> int:
    return 10_000 * seed + 100 * number + at
