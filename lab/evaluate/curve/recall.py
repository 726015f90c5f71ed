"""Measures how soon a fault is named and for how long it stays named, from the verdict rows of all windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline.lab.evaluate.curve.job_rows import StepTimes
from drumline.lab.evaluate.scoring import INSUFFICIENT, WARNING, WHOLE_JOB
from drumline.views.verdict.verdict_rows import VerdictRow

#: Points of the curve of recall, from the begin of a fault.
STEPS = (20, 40, 60, 100, 160, 200)
SECONDS = (12, 30)


@dataclass(frozen=True)
class FaultPhase:
    """Describes an injected fault. `ranks`: empty where the job as a whole is slow, then `causes` decide."""

    name: str
    first_step: int
    last_step: int
    ranks: tuple[int, ...]
    causes: tuple[str, ...] = ()

    def names(self, row: VerdictRow) -> bool:
        """Return whether a row names this fault: one of its ranks, or the job with one of its causes."""
        if row.severity < WARNING:
            return False
        return row.rank in self.ranks or (not self.ranks and row.rank == WHOLE_JOB and row.cause in self.causes)

    def names_wrongly(self, row: VerdictRow) -> bool:
        """Return whether a row names a rank that is not at fault."""
        return row.severity >= WARNING and row.rank != WHOLE_JOB and row.rank not in self.ranks


@dataclass(frozen=True)
class Recall:
    """States when a fault was named: steps and seconds from its begin to the end of the first window that names it.

    Attributes:
        steps, seconds: None where it was not named.
        lasted_steps, lasted_s: of the fault.
        named, whole: windows wholly inside the fault from its first name on: with a name, and all.
        wrong: windows that overlap the fault and name a rank that is not at fault.
        stated: (window's first step, lost share of the rank at fault), of windows wholly inside the fault.
    """

    steps: int | None
    seconds: float | None
    lasted_steps: int
    lasted_s: float
    named: int
    whole: int
    wrong: int
    windows: int
    stated: tuple[tuple[int, float], ...]

    @property
    def stays(self) -> bool:
        """Return whether it stayed named while it lasted."""
        return self.steps is not None and self.named == self.whole

    def within_steps(self, most: int) -> bool | None:
        """Return whether it was named within so many steps; None where it did not last so long."""
        return None if self.lasted_steps < most else self.steps is not None and self.steps <= most

    def within_seconds(self, most: float) -> bool | None:
        """Return whether it was named within so many seconds; None where it did not last so long."""
        return None if self.lasted_s < most else self.seconds is not None and self.seconds <= most


def by_window(rows: Iterable[VerdictRow]) -> dict[int, list[VerdictRow]]:
    """Return the first step of each window -> its rows, ascending."""
    out: dict[int, list[VerdictRow]] = {}
    for row in rows:
        out.setdefault(row.first_step, []).append(row)
    return dict(sorted(out.items()))


def recall(fault: FaultPhase, rows: Iterable[VerdictRow], times: StepTimes) -> Recall:
    """Return when a fault was named. Windows that begin before the fault and reach into it count, later ones don't."""
    windows = [of for of in by_window(rows).values() if _overlaps(fault, of[0])]
    inside = [of for of in windows if fault.first_step <= of[0].first_step and of[0].last_step <= fault.last_step]
    first = next((of for of in windows if any(map(fault.names, of))), None)
    later = [of for of in inside if first is not None and of[0].first_step >= first[0].first_step]
    steps = seconds = None
    if first is not None:
        steps = first[0].last_step + 1 - fault.first_step
        seconds = times.seconds(fault.first_step, first[0].last_step)
    return Recall(
        steps,
        seconds,
        fault.last_step + 1 - fault.first_step,
        times.seconds(fault.first_step, fault.last_step),
        sum(any(map(fault.names, of)) for of in later),
        len(later),
        sum(any(map(fault.names_wrongly, of)) for of in windows),
        len(windows),
        tuple((of[0].first_step, share) for of in inside if (share := _stated(fault, of)) is not None),
    )


def _overlaps(fault: FaultPhase, row: VerdictRow) -> bool:
    return row.first_step <= fault.last_step and row.last_step >= fault.first_step


def _stated(fault: FaultPhase, rows: Sequence[VerdictRow]) -> float | None:
    """Return the largest lost share of the ranks at fault, of the job without them; None without a verdict."""
    ranks = fault.ranks or (WHOLE_JOB,)
    return max((row.share for row in rows if row.rank in ranks and row.severity != INSUFFICIENT), default=None)


def share_within(recalls: Sequence[Recall], point: float, seconds: bool = False) -> tuple[int, int]:
    """Return how many faults were named by a point of the curve, and how many lasted so long."""
    hits = [fault.within_seconds(point) if seconds else fault.within_steps(int(point)) for fault in recalls]
    known = [hit for hit in hits if hit is not None]
    return sum(known), len(known)
