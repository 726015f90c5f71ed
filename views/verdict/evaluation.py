"""The straggler code over a recorded job: which ranks it names, why, at which cost, and what could not be evaluated."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from drumline.infra.guidance.causes import INSUFFICIENT_DATA
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import INSUFFICIENT, OK, StragglerConfig
from drumline.streams.offline import ANY_LENGTH_NS, LEAST_STEPS, fitting_window, latest, verdicts
from drumline.views.report.text import LEVELS, WHOLE_JOB, evidence, meaning
from drumline.views.verdict.rank_budgets import RankBudget, rank_budgets
from drumline.views.verdict.recorded_job import OfflineJob
from drumline.views.verdict.verdict_rows import VerdictRow, rows_of

#: Steps that a name needs: windows of two steps. The first has no past, and the alarm takes two of three.
LEAST_WINDOWS, SURE_STEPS = 4, 20
NEEDED_STEPS = LEAST_WINDOWS * LEAST_STEPS


@dataclass(frozen=True)
class EvaluatedWindow:
    """Holds one window.

    `length_ns`: time of the steps that were compared. `reason`: detail of its insufficient data, "" where it could be
    evaluated.
    """

    first_step: int
    last_step: int
    length_ns: float
    steps_used: int
    rows: Sequence[VerdictRow]
    reason: str
    is_evaluated: bool


@dataclass(frozen=True)
class LateRank:
    """Names a rank (-1: the job as a whole), with the cost of all windows that name it.

    Attributes:
        level: suspect, warning or critical: the highest state of its alarm. One window alone is suspect.
        share: of the time of all evaluated windows, by what it cost in each of them; 0..1.
        s_per_step: the same in seconds a step, mean over all evaluated steps.
        windows: number of windows that name it.
        evidence: texts, of the window of its main cause that cost most.
    """

    rank: int
    level: str
    cause: str
    detail: str
    confidence: str
    share: float
    s_per_step: float
    gpu_seconds: float
    windows: int
    first_step: int
    last_step: int
    evidence: tuple[str, ...]

    @property
    def is_sure(self) -> bool:
        """Return whether more than one window names it."""
        return self.level != LEVELS[0]


@dataclass(frozen=True)
class OfflineVerdict:
    """Holds the verdict on a job.

    `named`: the most expensive first. `steps`: number of recorded ones. `window_steps`: 0 = too few for any window.
    """

    job: OfflineJob
    steps: int
    window_steps: int
    windows: Sequence[EvaluatedWindow]
    named: Sequence[LateRank]
    budgets: Sequence[RankBudget]

    @property
    def evaluated(self) -> int:
        """Return the number of windows that could be evaluated."""
        return sum(window.is_evaluated for window in self.windows)

    @property
    def reason(self) -> str:
        """Return the meaning of the reason why most other windows could not; "" where all could."""
        reasons = Counter(window.reason for window in self.windows if not window.is_evaluated)
        return meaning(INSUFFICIENT_DATA, reasons.most_common(1)[0][0]) if reasons else ""

    @property
    def answer(self) -> str:
        """Return named, suspect, nobody or insufficient."""
        if any(named.is_sure and named.rank != WHOLE_JOB for named in self.named):
            return "named"
        if self.named:
            return "suspect"
        return "none" if self.evaluated and self.steps >= NEEDED_STEPS else "insufficient"

    def as_json(self) -> dict[str, Any]:
        """Return the verdict as `drumline verdict --json` prints it (docs/guide/foreign-traces.md)."""
        job = self.job
        return {
            "answer": self.answer,
            "job": job.name,
            "format": str(job.form),
            "ranks": job.ranks,
            "world_size": job.world_size,
            "unit": job.unit,
            "steps": self.steps,
            "needed_steps": NEEDED_STEPS,
            "window_steps": self.window_steps,
            "verdicts": [_named_json(named, job) for named in self.named],
            "budgets": [budget.as_json() for budget in self.budgets],
            "not_understood": [
                {"rank": rank, "share": round(other.share, 6), "kernels": list(other.kernels)}
                for rank, other in job.other_communication.items()
            ],
            "windows": [_window_json(window, job) for window in self.windows],
            "notes": list(job.notes),
            "read": dict(job.read),
        }


def evaluate_job(job: OfflineJob, config: StragglerConfig, window_steps: int | None = None) -> OfflineVerdict:
    """Return the verdict on a job. `window_steps`: None = those of `config`, fewer where few steps are recorded."""
    lengths, budgets = _step_lengths(job), rank_budgets(job)
    if len(lengths) < 2 * LEAST_STEPS:
        return OfflineVerdict(job, len(lengths), 0, (), (), budgets)
    size = window_steps or fitting_window(len(lengths), config.window_steps)
    published = verdicts(job.batches, replace(config, window_steps=size, window_ns=ANY_LENGTH_NS))
    windows = [_window(batch.envelope, list(rows_of(batch)), lengths) for batch in latest(published).values()]
    windows.sort(key=lambda window: window.first_step)
    return OfflineVerdict(job, len(lengths), size, windows, named_ranks(windows, job), budgets)


def named_ranks(windows: Sequence[EvaluatedWindow], job: OfflineJob) -> list[LateRank]:
    """Return the ranks, and the job, that evaluated windows name; the most expensive first, the job last."""
    evaluated = [window for window in windows if window.is_evaluated]
    total_ns = max(1.0, sum(window.length_ns for window in evaluated))
    steps = max(1, sum(window.steps_used for window in evaluated))
    by_rank = dict[int, list[tuple[EvaluatedWindow, VerdictRow]]]()
    for window in evaluated:
        for row in window.rows:
            if row.severity > OK and (row.rank != WHOLE_JOB or steps >= NEEDED_STEPS):  # fewer show no turns of ranks
                by_rank.setdefault(row.rank, []).append((window, row))
    lost_ns = Counter[int]()
    for window in evaluated:
        lost_ns.update({row.rank: row.lost_ns for row in window.rows if row.rank != WHOLE_JOB or row.severity > OK})
    named_rows = [_named(rank, pairs, (lost_ns[rank], total_ns, steps), job) for rank, pairs in by_rank.items()]
    return sorted(named_rows, key=lambda n: (n.rank == WHOLE_JOB, not n.is_sure, -n.share))


def _named(
    rank: int, pairs: Sequence[tuple[EvaluatedWindow, VerdictRow]], evaluated: tuple[int, float, int], job: OfflineJob
) -> LateRank:
    """Return the name of a rank. `evaluated`: what it lost and the time, in ns, and steps, of all evaluated windows."""
    lost = Counter[tuple[str, str]]()
    for _, row in pairs:
        lost[row.cause, row.detail] += row.lost_ns + 1
    (cause, detail), _ = lost.most_common(1)[0]
    of_cause = [pair for pair in pairs if (pair[1].cause, pair[1].detail) == (cause, detail)]
    window, worst = max(of_cause, key=lambda pair: pair[1].lost_ns)
    lost_ns, total_ns, steps = evaluated
    states = [LEVELS.index(row.state) for _, row in pairs if row.state in LEVELS]
    return LateRank(
        rank=rank,
        level=LEVELS[max(states, default=0)],
        cause=cause,
        detail=detail,
        confidence=worst.confidence,
        share=lost_ns / total_ns,
        s_per_step=lost_ns / 1e9 / steps,
        gpu_seconds=sum(row.gpu_seconds for _, row in pairs),
        windows=len(pairs),
        first_step=pairs[0][0].first_step,
        last_step=pairs[-1][0].last_step,
        evidence=tuple(
            _in_unit(text, job.unit) for text in evidence(_with_recorded_step(worst.evidence, job), window.steps_used)
        ),
    )


def _in_unit(text: str, unit: str) -> str:
    """Return evidence that claims no step where collectives are counted as such."""
    return text if unit == "step" else re.sub(r" 0 of step (\d+)", r" \1", text).replace(" a step", f" a {unit}")


def _with_recorded_step(text: str, job: OfflineJob) -> str:
    """Return evidence with the step of its collective as the recorded job numbers it."""
    values = json.loads(text or "{}")
    if isinstance(at := values.get("collective"), dict) and isinstance(at.get("step"), int):
        at["step"] = job.recorded_step(at["step"])
    return json.dumps(values)


def _step_lengths(job: OfflineJob) -> dict[int, int]:
    """Return step -> its length on the GPU, of the rank on which it was longest; ns."""
    lengths = dict[int, int]()
    for _, batch in job.batches:
        if batch.topic == Topic.STEP:
            columns = batch.columns
            for step, length_ns in zip(columns["step"].tolist(), columns["gpu_duration_ns"].tolist(), strict=True):
                lengths[step] = max(lengths.get(step, 0), length_ns)
    return lengths


def _window(envelope: Any, rows: Sequence[VerdictRow], lengths: Mapping[int, int]) -> EvaluatedWindow:
    evaluated = any(row.severity != INSUFFICIENT for row in rows if row.rank != WHOLE_JOB)
    reasons = Counter(row.detail for row in rows if row.severity == INSUFFICIENT)
    reason = "" if evaluated or not reasons else reasons.most_common(1)[0][0]
    first, last, used = (int(envelope[name]) for name in ("first_step", "last_step", "steps_used"))
    within = [lengths[step] for step in range(first, last + 1) if step in lengths]
    return EvaluatedWindow(
        first_step=first,
        last_step=last,
        length_ns=used * sum(within) / max(1, len(within)),
        steps_used=used,
        rows=sorted(rows, key=lambda row: row.rank),
        reason=reason,
        is_evaluated=evaluated,
    )


def _named_json(named: LateRank, job: OfflineJob) -> dict[str, Any]:
    return {
        "rank": named.rank,
        "described": job.described(named.rank) if named.rank != WHOLE_JOB else "the job as a whole",
        "level": named.level,
        "cause": named.cause,
        "detail": named.detail,
        "confidence": named.confidence,
        "lost_share": round(named.share, 6),
        "lost_s_per_step": round(named.s_per_step, 9),
        "gpu_seconds": round(named.gpu_seconds, 6),
        "windows": named.windows,
        "first_step": job.recorded_step(named.first_step),
        "last_step": job.recorded_step(named.last_step),
        "evidence": list(named.evidence),
    }


def _window_json(window: EvaluatedWindow, job: OfflineJob) -> dict[str, Any]:
    rows = [
        {"rank": r.rank, "severity": r.severity, "cause": r.cause, "detail": r.detail, "lost_share": round(r.share, 6)}
        for r in window.rows
    ]
    return {
        "first_step": job.recorded_step(window.first_step),
        "last_step": job.recorded_step(window.last_step),
        "evaluated": window.is_evaluated,
        "reason": window.reason,
        "rows": rows,
    }
