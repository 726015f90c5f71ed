"""Measures how often healthy windows name a rank, and how soon a late rank is named, on made-up jobs with jitter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from drumline.infra.bench.jittery_jobs import HEALTHY, LONG, fault, lateness, named, verdicts, windows
from drumline.infra.bench.result import BenchReport, Progress

RANKS, SHARES, WINDOW = (2, 4, 8), (0.05, 0.15, 0.3), 20
#: Jitter among which faults begin, share of it, and what the fault costs a step: as much as recorded ones, or little.
AMONG = (("no jitter", 0.0, 0.05), ("independent steps", 0.15, 0.8), ("turns of 3 steps", 0.1, 0.8),
         ("drift of 3 steps", 0.05, 0.8), ("launches, waited for in each step", 0.1, 0.8))  # fmt: skip
FAULTS = ("idle", "compute", "every 4th step")
#: Healthy windows before a fault: of a job that has just begun, and of others. Windows of the fault.
YOUNG, OLDER, DURING = 5, (12, 40), 6
MOST_PER_1000, MOST_DELAY = 1.0, 2.0


def bench_names(count: int, seed: int = 0, progress: Progress = lambda _: None) -> BenchReport:
    """Measure false names in `count` windows of each healthy job, and the delay of each fault's name.

    `seed`: of the jobs; rules were chosen by seeds up to 7, and are checked by others.
    """
    report = BenchReport("names", "made-up jobs of 2, 4 and 8 ranks with jitter of 5 to 30 % of a step", "none")
    total, false, jitter = 0, 0, 0
    for number, kind in enumerate((*HEALTHY, *LONG)):
        progress(kind)
        healthy, hits = 0, 0
        for at, (ranks, share) in enumerate((ranks, share) for ranks in RANKS for share in SHARES):
            late = lateness(kind, ranks, WINDOW * count, share, seed=_seed(seed, number, at))
            result = verdicts(windows(late, seed=_seed(seed, number, at)))
            healthy, hits = healthy + len(result), hits + sum(bool(named(verdict)) for verdict in result)
            jitter += sum(verdict.rows[0].cause.cause == "jitter" for verdict in result)
        if kind in HEALTHY:
            total, false = total + healthy, false + hits
        report.add(f"{kind}: windows with a name", 1000 * hits / healthy, "of 1,000")
    report.add("healthy windows", total, "")
    report.add("healthy windows with a name", 1000 * false / total, "of 1,000", target=MOST_PER_1000, at_most=True)
    report.add("windows with the job's jitter", jitter, "")
    for ages, name, target in ((OLDER, "", MOST_DELAY), ((YOUNG,), "of young jobs: ", None)):
        delays, wrong = _delays(ages, seed, progress)
        named_percent = 100 * sum(delay is not None for delay in delays) / len(delays)
        p95 = float(np.percentile([delay or DURING + 1 for delay in delays], 95))
        report.add(f"{name}faults", len(delays), "")
        report.add(f"{name}faults named", named_percent, "%", target=None if target is None else 100)
        report.add(f"{name}windows until the name, p95", p95, "windows", target=target, at_most=True)
        report.add(f"{name}other ranks named meanwhile", wrong, "windows")
    report.notes.append(
        "Turns of 20 steps and more are not among the healthy windows: a rank that is late for a whole window is a "
        "straggler for so long. The window in which a fault begins is the first. Faults among jitter cost 0.8 of a "
        "step on average, as those recorded; without jitter 0.05. They begin after 12 or 40 "
        "windows, in young jobs after 5."
    )
    return report


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
