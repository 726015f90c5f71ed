"""All methods over one recording, each judged like ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.infra.evaluate.methods import hta, ingero, longest, nvrx, traceml
from drumline.infra.evaluate.scoring import Report, Row, judge_phases
from drumline.infra.evaluate.window_input import Job, read_job, rows

OURS = "drumline"


@dataclass(frozen=True)
class Method:
    """`lacks`: what the recordings do not have that the method would use; "" = nothing."""

    name: str
    source: str
    verdicts: Callable[[Job], Iterator[Row]]
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
class Judged:
    """What a method found in one recording."""

    method: str
    source: str
    lacks: str
    report: Report

    @property
    def victims(self) -> int:
        """Innocent ranks named, summed over counted phases with a fault."""
        counted = [phase for phase in self.report.phases if phase.counted and phase.is_fault]
        return sum(len(set(phase.found_ranks) - set(phase.expected_ranks)) for phase in counted)

    def as_json(self) -> dict[str, Any]:
        head = {"method": self.method, "source": self.source, "lacks": self.lacks, "victims": self.victims}
        return {**head, **self.report.as_json()}


def compare(folder: Path, window_steps: int, phases: Sequence[Mapping[str, Any]], ours: Report) -> list[Judged]:
    """Ours first. `phases` go to the judge only. Raises BadTrace, BadManifest."""
    job = read_job(folder, window_steps)
    judged = [Judged(OURS, "this project: lost time over all communicators", "", ours)]
    for method in METHODS:
        report = judge_phases(phases, method.verdicts(job))
        judged.append(Judged(method.name, method.source, method.lacks, report))
    return judged
