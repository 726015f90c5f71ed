"""Judging verdicts against what was injected into a recording. Pure: knows rows of gpu.straggler.v1, no program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

INSUFFICIENT, WARNING = -1, 2
#: What severities are called, and a rank that could not be judged in a window in which others were.
WORDS = {1: "suspect", 2: "warning", 3: "critical", INSUFFICIENT: "not judged"}
WHOLE_JOB = -1


class BadManifest(ValueError):
    """The manifest's phases cannot be read."""


@dataclass(frozen=True, slots=True)
class Row:
    """One verdict row: a rank (-1 = the whole job) in one window, judged on its own."""

    first_step: int
    last_step: int
    rank: int
    severity: int
    cause: str
    detail: str
    share: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase and what was found in it; the fields of `drumline evaluate --json`. `windows`: those wholly inside it;
    of them `unjudged`: in which no rank could be judged, and `unjudged_why`: the details given. `besides`: rank -> what
    was said of it without it being found -> in how many windows. `lost_share`: mean over the windows of the largest
    share that a found rank lost (of any rank, where none was found)."""

    phase: str
    counted: bool
    first_step: int
    last_step: int
    windows: int
    unjudged: int
    unjudged_why: list[str]
    expected_ranks: list[int]
    found_ranks: list[int]
    accepted_causes: list[str]
    found_cause: str | None
    found_detail: str | None
    besides: dict[int, dict[str, int]]
    lost_share: float

    @property
    def judged(self) -> bool:
        """In some window at least."""
        return self.windows > self.unjudged

    @property
    def is_fault(self) -> bool:
        return bool(self.expected_ranks or self.accepted_causes)

    @property
    def recalled(self) -> bool:
        """All expected ranks were found (of a fault without a rank: something was found)."""
        return self.found_cause is not None and set(self.expected_ranks) <= set(self.found_ranks)

    @property
    def cause_right(self) -> bool:
        return self.found_cause is not None and (not self.accepted_causes or self.found_cause in self.accepted_causes)

    @property
    def right(self) -> bool:
        """Exactly the expected ranks, with an accepted cause. A phase in which nothing was judged is not right."""
        if not self.judged:
            return False
        if not self.is_fault:
            return self.found_cause is None
        return self.recalled and self.cause_right and set(self.found_ranks) == set(self.expected_ranks)


@dataclass(frozen=True, slots=True)
class Report:
    """`across`: windows that lie wholly inside no phase, and count for none."""

    phases: list[Phase]
    across: int = 0

    @property
    def recall(self) -> float | None:
        """Over counted fault phases; None if there is none. A phase too short for a window was not found."""
        return _mean([p.recalled for p in self.phases if p.counted and p.is_fault])

    @property
    def cause_accuracy(self) -> float | None:
        return _mean([p.cause_right for p in self.phases if p.counted and p.is_fault])

    @property
    def false_alarms(self) -> int:
        """Counted healthy phases in which a rank or the job as a whole was found."""
        return sum(1 for p in self.phases if p.counted and not p.is_fault and p.found_cause is not None)

    @property
    def right(self) -> bool:
        return all(phase.right for phase in self.phases if phase.counted)

    @property
    def unjudged(self) -> list[str]:
        """Counted phases in which nothing was judged: no window fits into them, or none had the data."""
        return [phase.phase for phase in self.phases if phase.counted and not phase.judged]

    def as_json(self) -> dict[str, Any]:
        return {
            "phases": [asdict(phase) for phase in self.phases],
            "windows_across_phases": self.across,
            "recall": self.recall,
            "false_alarms": self.false_alarms,
            "cause_accuracy": self.cause_accuracy,
        }


def judge_phases(phases: Sequence[Mapping[str, Any]], rows: Iterable[Row]) -> Report:
    """`phases`: of the manifest, in its order. Raises BadManifest."""
    every = list(rows)
    try:
        found = [_judge(phase, every) for phase in phases]
        inside = {row.first_step for phase in found for row in _inside(phase.first_step, phase.last_step, every)}
        return Report(found, len({row.first_step for row in every} - inside))
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"phase without a usable {error}") from None


def _judge(phase: Mapping[str, Any], rows: list[Row]) -> Phase:
    first, last = int(phase["first_step"]), int(phase["last_step"])
    inside = _inside(first, last, rows)
    windows = {row.first_step for row in inside}
    unjudged = windows - {row.first_step for row in _of_ranks(inside) if row.severity != INSUFFICIENT}

    def without(row: Row) -> bool:
        return row.severity == INSUFFICIENT and row.first_step in unjudged

    blamed: dict[int, list[Row]] = {}
    for row in inside:
        if row.severity >= WARNING:
            blamed.setdefault(row.rank, []).append(row)
    found = {rank: hits for rank, hits in sorted(blamed.items()) if 2 * len(hits) >= len(windows)}
    shares: dict[tuple[str, str], float] = {}
    for hit in (hit for hits in found.values() for hit in hits):
        shares[hit.cause, hit.detail] = shares.get((hit.cause, hit.detail), 0.0) + hit.share
    causes: dict[str, float] = {}
    for (name, _), share in shares.items():
        causes[name] = causes.get(name, 0.0) + share
    cause = max(causes, key=lambda name: causes[name], default=None)
    details = {detail: share for (name, detail), share in shares.items() if name == cause}
    detail = max(details, key=lambda name: details[name], default=None)
    among = [row for row in inside if row.severity != INSUFFICIENT and (not found or row.rank in found)]
    most = [max((row.share for row in among if row.first_step == window), default=0.0) for window in windows]
    return Phase(
        phase=str(phase["phase"]),
        counted=bool(phase.get("counted", True)),
        first_step=first,
        last_step=last,
        windows=len(windows),
        unjudged=len(unjudged),
        unjudged_why=sorted({row.detail for row in inside if without(row) and row.detail}),
        expected_ranks=sorted(int(rank) for rank in phase["fault_ranks"]),
        found_ranks=[rank for rank in found if rank != WHOLE_JOB],
        accepted_causes=[str(name) for name in phase.get("accepted_causes", [])],
        found_cause=cause,
        found_detail=detail,
        besides=_counted(row for row in inside if row.rank not in found and not without(row)),
        lost_share=round(sum(most) / len(most), 6) if most else 0.0,
    )


def _counted(rows: Iterable[Row]) -> dict[int, dict[str, int]]:
    """Rank -> what was said of it -> how often."""
    said: dict[int, dict[str, int]] = {}
    for row in (row for row in rows if row.severity in WORDS):
        counts = said.setdefault(row.rank, {})
        counts[WORDS[row.severity]] = counts.get(WORDS[row.severity], 0) + 1
    return said


def _inside(first: int, last: int, rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if first <= row.first_step and row.last_step <= last]


def _of_ranks(rows: Sequence[Row]) -> Sequence[Row]:
    """Rows of ranks; where there are none, those of the job."""
    return [row for row in rows if row.rank != WHOLE_JOB] or rows


def _mean(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
