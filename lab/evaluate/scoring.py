"""Scores verdict rows against the faults that were injected into a recording. Needs rows of gpu.straggler.v1 only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.infra.guidance.causes import HOST_STALL, SLOW_COMPUTE, SLOW_COPY, SLOW_GPU
from drumline.views.verdict.verdict_rows import VerdictRow

INSUFFICIENT, WARNING = -1, 2
#: Severity -> its key in JSON; INSUFFICIENT: a rank without data in a window in which its peers had data.
SEVERITY_NAMES = {1: "suspect", 2: "warning", 3: "critical", INSUFFICIENT: "not judged"}  # glossary: keys of JSON
WHOLE_JOB = -1
#: Field of Phase -> its key in JSON, where they differ.
JSON_KEYS = {"not_evaluated": "unjudged", "reasons": "unjudged_why"}


#: Cause of an injected fault -> causes that NCCL's operations alone can show for it. A copy that the host waits for
#: delays the host's calls; any other copy keeps the GPU busy.
LIGHT_CAUSES = {SLOW_COMPUTE: (SLOW_GPU,), SLOW_COPY: (HOST_STALL, SLOW_GPU)}


class BadManifest(ValueError):
    """The phases of a manifest cannot be read."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Holds a phase of the manifest and what was found in it.

    windows: those wholly inside the phase.
    not_evaluated: of them, those in which no rank had enough data; `reasons`: the details given.
    besides: rank -> severity -> windows, of ranks that were named too rarely to be found.
    lost_share: mean over the windows of the largest share that a found rank lost (of any rank, where none was found).
    """

    phase: str
    counted: bool
    first_step: int
    last_step: int
    windows: int
    not_evaluated: int
    reasons: list[str]
    expected_ranks: list[int]
    found_ranks: list[int]
    accepted_causes: list[str]
    found_cause: str | None
    found_detail: str | None
    besides: dict[int, dict[str, int]]
    lost_share: float
    accepted_details: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the phase as `drumline evaluate --json` prints it."""
        return {JSON_KEYS.get(name, name): value for name, value in asdict(self).items()}

    @property
    def is_evaluated(self) -> bool:
        """Return whether at least one window was evaluated."""
        return self.windows > self.not_evaluated

    @property
    def is_fault(self) -> bool:
        """Return whether a fault was injected."""
        return bool(self.expected_ranks or self.accepted_causes)

    @property
    def recalled(self) -> bool:
        """Return whether all expected ranks were found (for a fault without a rank: whether a cause was found)."""
        return self.found_cause is not None and set(self.expected_ranks) <= set(self.found_ranks)

    @property
    def cause_right(self) -> bool:
        """Return whether the cause found is an accepted one, and its detail where the manifest names some."""
        if self.found_cause is None or (self.accepted_causes and self.found_cause not in self.accepted_causes):
            return False
        return not self.accepted_details or self.found_detail in self.accepted_details

    @property
    def right(self) -> bool:
        """Return whether exactly the expected ranks were found, with an accepted cause; False without an evaluated
        window.
        """
        if not self.is_evaluated:
            return False
        if not self.is_fault:
            return self.found_cause is None
        return self.recalled and self.cause_right and set(self.found_ranks) == set(self.expected_ranks)


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """Holds all phases. `across`: windows that lie wholly inside no phase, and count for none."""

    phases: list[Phase]
    across: int = 0

    @property
    def recall(self) -> float | None:
        """Return recall over counted fault phases; None if there is none. A phase too short for a window counts as not
        found.
        """
        return _mean([p.recalled for p in self.phases if p.counted and p.is_fault])

    @property
    def cause_accuracy(self) -> float | None:
        """Return the share of counted fault phases with a right cause; None if there is none."""
        return _mean([p.cause_right for p in self.phases if p.counted and p.is_fault])

    @property
    def false_alarms(self) -> int:
        """Return the number of counted healthy phases in which a rank or the job as a whole was found."""
        return sum(1 for p in self.phases if p.counted and not p.is_fault and p.found_cause is not None)

    @property
    def right(self) -> bool:
        """Return whether all counted phases are right."""
        return all(phase.right for phase in self.phases if phase.counted)

    @property
    def without_result(self) -> list[str]:
        """Return the counted phases without an evaluated window: too short, or without data."""
        return [phase.phase for phase in self.phases if phase.counted and not phase.is_evaluated]

    def as_json(self) -> dict[str, Any]:
        """Return the report as `drumline evaluate --json` prints it."""
        return {
            "phases": [phase.as_json() for phase in self.phases],
            "windows_across_phases": self.across,
            "recall": self.recall,
            "false_alarms": self.false_alarms,
            "cause_accuracy": self.cause_accuracy,
        }


def light_phases(phases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the phases with the causes that a light window can have for them."""
    return [
        {
            **phase,
            "accepted_causes": [to for name in phase["accepted_causes"] for to in LIGHT_CAUSES.get(name, (name,))],
        }
        if "accepted_causes" in phase
        else dict(phase)
        for phase in phases
    ]


def recommended_window(phases: Sequence[Mapping[str, Any]], most: int) -> int:
    """Return the largest window of steps, at most `most`, that fits the counted phases; `most` where none does.

    Windows begin at multiples of their length. Two of them fit wholly into each fault phase, one into the others.
    """
    counted = [phase for phase in phases if phase.get("counted")]

    def fits(steps: int) -> bool:
        return all(
            (int(p["last_step"]) + 1) // steps + int(-p["first_step"] // steps) >= (2 if p.get("fault_ranks") else 1)
            for p in counted
        )

    return next((steps for steps in range(most, 1, -1) if fits(steps)), most) if counted else most


def evaluate_phases(phases: Sequence[Mapping[str, Any]], rows: Iterable[VerdictRow]) -> EvaluationReport:
    """Score rows against the manifest's phases, in their order. Raises BadManifest."""
    verdicts = list(rows)
    try:
        evaluated = [_evaluate(phase, verdicts) for phase in phases]
        inside = {row.first_step for phase in evaluated for row in _inside(phase.first_step, phase.last_step, verdicts)}
        return EvaluationReport(evaluated, len({row.first_step for row in verdicts} - inside))
    except (KeyError, TypeError, ValueError) as error:
        raise BadManifest(f"phase without a usable {error}") from None


def _evaluate(phase: Mapping[str, Any], rows: list[VerdictRow]) -> Phase:
    first, last = int(phase["first_step"]), int(phase["last_step"])
    inside = _inside(first, last, rows)
    windows = {row.first_step for row in inside}
    without_rank = windows - {row.first_step for row in _of_ranks(inside) if row.severity != INSUFFICIENT}

    def without(row: VerdictRow) -> bool:
        return row.severity == INSUFFICIENT and row.first_step in without_rank

    named: dict[int, list[VerdictRow]] = {}
    for row in inside:
        if row.severity >= WARNING:
            named.setdefault(row.rank, []).append(row)
    ranks_found = {rank: hits for rank, hits in sorted(named.items()) if 2 * len(hits) >= len(windows)}
    cause, detail = _main_cause(hit for hits in ranks_found.values() for hit in hits)
    among = [row for row in inside if row.severity != INSUFFICIENT and (not ranks_found or row.rank in ranks_found)]
    most = [max((row.share for row in among if row.first_step == window), default=0.0) for window in windows]
    return Phase(
        phase=str(phase["phase"]),
        counted=bool(phase.get("counted", True)),
        first_step=first,
        last_step=last,
        windows=len(windows),
        not_evaluated=len(without_rank),
        reasons=sorted({row.detail for row in inside if without(row) and row.detail}),
        expected_ranks=sorted(int(rank) for rank in phase["fault_ranks"]),
        found_ranks=[rank for rank in ranks_found if rank != WHOLE_JOB],
        accepted_causes=[str(name) for name in phase.get("accepted_causes", [])],
        accepted_details=[str(name) for name in phase.get("accepted_details", [])],
        found_cause=cause,
        found_detail=detail,
        besides=_counted(row for row in inside if row.rank not in ranks_found and not without(row)),
        lost_share=round(sum(most) / len(most), 6) if most else 0.0,
    )


def _main_cause(hits: Iterable[VerdictRow]) -> tuple[str | None, str | None]:
    """Return the cause with the largest sum of shares, and its detail with the largest sum."""
    shares: dict[tuple[str, str], float] = {}
    for hit in hits:
        shares[hit.cause, hit.detail] = shares.get((hit.cause, hit.detail), 0.0) + hit.share
    causes: dict[str, float] = {}
    for (name, _), share in shares.items():
        causes[name] = causes.get(name, 0.0) + share
    cause = max(causes, key=lambda name: causes[name], default=None)
    details = {detail: share for (name, detail), share in shares.items() if name == cause}
    detail = max(details, key=lambda name: details[name], default=None)
    return cause, detail


def _counted(rows: Iterable[VerdictRow]) -> dict[int, dict[str, int]]:
    """Return rank -> severity -> number of windows."""
    counts_by_rank: dict[int, dict[str, int]] = {}
    for row in (row for row in rows if row.severity in SEVERITY_NAMES):
        counts = counts_by_rank.setdefault(row.rank, {})
        counts[SEVERITY_NAMES[row.severity]] = counts.get(SEVERITY_NAMES[row.severity], 0) + 1
    return counts_by_rank


def _inside(first: int, last: int, rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    return [row for row in rows if first <= row.first_step and row.last_step <= last]


def _of_ranks(rows: Sequence[VerdictRow]) -> Sequence[VerdictRow]:
    """Return the rows of ranks; those of the job where there are none."""
    return [row for row in rows if row.rank != WHOLE_JOB] or rows


def _mean(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
