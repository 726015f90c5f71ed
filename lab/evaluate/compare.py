"""Runs all methods over one recording and scores them by the same rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.lab.evaluate.methods import hta, ingero, longest, nvrx, traceml
from drumline.lab.evaluate.scoring import EvaluationReport, evaluate_phases
from drumline.lab.evaluate.window_input import Job, read_job, rows
from drumline.views.verdict.verdict_rows import VerdictRow

DRUMLINE = "drumline"


@dataclass(frozen=True)
class Method:
    """Describes a published method. `lacks`: data that it would use and recordings do not have; "" for none."""

    name: str
    source: str
    verdicts: Callable[[Job], Iterator[VerdictRow]]
    lacks: str = ""


METHODS = (
    Method(
        "nvrx-relative",
        "NVIDIA/nvidia-resiliency-ext: relative GPU score < 0.75",
        lambda job: rows(job, *nvrx.relative(job), "slow_compute"),
    ),
    Method(
        "nvrx-individual",
        "NVIDIA/nvidia-resiliency-ext: individual GPU score < 0.75",
        lambda job: rows(job, *nvrx.individual(job), "slow_compute"),
    ),
    Method(
        "traceml",
        "traceopt-ai/traceml: shortest visible phase, score >= 0.10",
        lambda job: rows(job, *traceml.verdicts(job)),
        "phase timers (kernel names stand in), data loader time (idle before forward stands in)",
    ),
    Method(
        "longest",
        "longest collective is slowest (naive), >= 10% of the window",
        lambda job: rows(job, *longest.verdicts(job)),
    ),
    Method(
        "hta-latest",
        "facebookresearch/HolisticTraceAnalysis: latest start of the last long collective; needs one clock",
        lambda job: rows(job, *hta.verdicts(job)),
    ),
    Method(
        "hta-1%",
        "the same, named only if later than the median rank by 1% of an iteration",
        lambda job: rows(job, *hta.verdicts(job, hta.SIGNIFICANT)),
    ),
    Method(
        "ingero",
        "ingero-io/ingero: launches/s > 30% below own average",
        lambda job: rows(job, *ingero.verdicts(job), "host_stall"),
        "context switches (launch leg alone decides), launch calls (kernel starts stand in)",
    ),
)


@dataclass(frozen=True)
class MethodResult:
    """Holds the findings of a method in one recording."""

    method: str
    source: str
    lacks: str
    report: EvaluationReport

    @property
    def victims(self) -> int:
        """Return the number of innocent ranks named, summed over counted fault phases."""
        counted = [phase for phase in self.report.phases if phase.counted and phase.is_fault]
        return sum(len(set(phase.found_ranks) - set(phase.expected_ranks)) for phase in counted)

    def as_json(self) -> dict[str, Any]:
        """Return the result as `drumline evaluate --compare --json` prints it."""
        head = {"method": self.method, "source": self.source, "lacks": self.lacks, "victims": self.victims}
        return {**head, **self.report.as_json()}


def compare(
    folder: Path, window_steps: int, phases: Sequence[Mapping[str, Any]], drumline: EvaluationReport
) -> list[MethodResult]:
    """Score all methods, drumline first. Only the scoring sees `phases`. Raises BadTrace, BadManifest."""
    job = read_job(folder, window_steps)
    results = [MethodResult(DRUMLINE, "this project: lost time over all communicators", "", drumline)]
    for method in METHODS:
        report = evaluate_phases(phases, method.verdicts(job))
        results.append(MethodResult(method.name, method.source, method.lacks, report))
    return results
