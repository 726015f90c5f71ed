"""Counts healthy windows: with a name, judged or not and why; and the upper bound of a rate that was seen seldom."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import exp, lgamma, log

from drumline.lab.evaluate.curve.recall import by_window
from drumline.lab.evaluate.scoring import INSUFFICIENT, WARNING, WHOLE_JOB
from drumline.views.verdict.verdict_rows import VerdictRow

#: Confidence of the upper bound, one-sided.
CONFIDENCE = 0.95


@dataclass
class HealthyCount:
    """Counts windows of healthy steps.

    `named`: with a rank at warning or above; `job`: with the job as a whole alone; `names`: how often each, by cause.
    """

    windows: int = 0
    named: int = 0
    job: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def add(self, windows: Iterable[list[VerdictRow]]) -> None:
        """Add windows, each as its rows."""
        for rows in windows:
            named = [row for row in rows if row.severity >= WARNING]
            self.windows += 1
            self.named += any(row.rank != WHOLE_JOB for row in named)
            self.job += bool(named) and all(row.rank == WHOLE_JOB for row in named)
            for row in named:
                subject = "job" if row.rank == WHOLE_JOB else f"rank {row.rank}"
                _count(self.names, f"{subject} {row.cause}")

    @property
    def per_1000(self) -> float:
        """Return the windows with a name of 1,000."""
        return 1000 * self.named / self.windows if self.windows else 0.0

    @property
    def bound_per_1000(self) -> float:
        """Return the exact upper bound of that rate."""
        return 1000 * upper_bound(self.named, self.windows)


@dataclass
class EvaluatedWindows:
    """Counts the windows of a recording in which a rank was evaluated, and the reasons for the rest."""

    windows: int = 0
    evaluated: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, rows: Iterable[VerdictRow], expected: Iterable[int]) -> None:
        """Add the windows of a recording. `expected`: the first steps of the windows that it holds."""
        windows = by_window(rows)
        for first in expected:
            ranks = [row for row in windows.get(first, []) if row.rank != WHOLE_JOB]
            self.windows += 1
            if any(row.severity != INSUFFICIENT for row in ranks):
                self.evaluated += 1
                continue
            details = sorted({row.detail for row in ranks if row.detail})
            _count(self.reasons, " ".join(details) or ("no detail" if ranks else "no verdict"))

    @property
    def share(self) -> float:
        """Return the share of windows that were evaluated."""
        return self.evaluated / self.windows if self.windows else 0.0


def upper_bound(hits: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Return the exact (Clopper-Pearson) upper bound of a share, at which so few hits have 1 - confidence."""
    if hits >= count:
        return 1.0
    low, high = hits / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(hits, count, middle) > 1 - confidence else (low, middle)
    return high


def _at_most(hits: int, count: int, share: float) -> float:
    """Return the probability of at most so many hits."""
    if share <= 0.0 or share >= 1.0:
        return float(share <= 0.0)
    choose = (lgamma(count + 1) - lgamma(k + 1) - lgamma(count - k + 1) for k in range(hits + 1))
    return sum(exp(c + k * log(share) + (count - k) * log(1 - share)) for k, c in enumerate(choose))


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1


def windows_inside(rows: Iterable[VerdictRow], spans: Iterable[tuple[int, int]]) -> list[list[VerdictRow]]:
    """Return the windows that lie wholly inside one of the spans of steps."""
    bounds = list(spans)
    return [
        of
        for of in by_window(rows).values()
        if any(first <= of[0].first_step and of[0].last_step <= last for first, last in bounds)
    ]
