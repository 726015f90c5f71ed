"""The rows of a verdict: one for each rank, one for the job as a whole, and the groups that are late together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.stragglers.analysis.cause import NO_CAUSE, Cause
from drumline.streams.stragglers.analysis.groups import groups_late, labels
from drumline.streams.stragglers.analysis.jitter import JobJitter
from drumline.streams.stragglers.analysis.job_change import JobRegression
from drumline.streams.stragglers.analysis.slow_link import SlowLink
from drumline.streams.stragglers.analysis.window_data import WindowData

#: The rank of the row that is about the job as a whole.
WHOLE_JOB = -1
#: Ranks of a group that each of its rows names; of larger groups it has the number. All in each would be n^2.
LATE_TOGETHER = 64
#: Rank -> its samples during its steps of the window.
SamplesOf = Callable[[int], Rows]


class Samples(NamedTuple):
    """Samples of the ranks' GPUs (SAMPLE_ROW) and processes (HOST_ROW); None = there are none."""

    gpu: SamplesOf | None = None
    host: SamplesOf | None = None

    def noting(self, read: set[int]) -> Samples:
        """Return the samples; the ranks whose are read are added to `read`."""

        def noted(rows_of: SamplesOf, rank: int) -> Rows:
            read.add(rank)
            return rows_of(rank)

        return Samples(*(rows_of and partial(noted, rows_of) for rows_of in self))


NO_SAMPLES = Samples()


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """Holds a row of gpu.straggler.v1 without the alarm state; times in ns, money in the configured currency."""

    rank: int
    severity: int
    cause: Cause
    lost_ns: int = 0
    share: float = 0.0
    lateness_ns: int = 0
    wait_ns: int = 0
    gpu_seconds_lost: float = 0.0
    money_lost: float = 0.0
    group: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names_rank(self) -> bool:
        """Return whether the row holds a rank for late, not the job as a whole."""
        return self.rank != WHOLE_JOB and self.severity >= SUSPECT


def totals(data: WindowData) -> tuple[list[int], list[int]]:
    """Return wait and lateness of each rank, ns over all communicators of the window."""
    wait, late = np.zeros(len(data.ranks)), np.zeros(len(data.ranks))
    for group in data.communicators:
        wait[group.members] += np.nansum(group.wait_ns, axis=1)
        late[group.members] += np.nansum(group.lateness_ns, axis=1)
    return [round(v) for v in wait.tolist()], [round(v) for v in late.tolist()]


def grouped(rows: list[RankVerdict], data: WindowData, hosts: Mapping[int, str]) -> list[RankVerdict]:
    """Return the rows, with the group that is late as a whole in the rows of its ranks."""
    late = {r.rank: (r.cause.cause, r.share) for r in rows if r.names_rank}
    if len(late) < 2:
        return rows
    ranks = data.ranks.tolist()
    candidates = labels(
        {rank: hosts.get(rank, "") for rank in ranks},
        {group.name: data.ranks[group.members].tolist() for group in data.communicators},
    )
    label_of = groups_late(late, ranks, candidates)
    together = {label: sorted(candidates[label]) for label in set(label_of.values())}
    named = ((row, label_of.get(row.rank, "")) for row in rows)
    return [_in_group(row, label, together[label]) if label else row for row, label in named]


def _in_group(row: RankVerdict, label: str, together: list[int]) -> RankVerdict:
    evidence = {**row.evidence, "late_together": together[:LATE_TOGETHER]}
    if len(together) > LATE_TOGETHER:
        evidence["late_together_count"] = len(together)
    return replace(row, group=label, evidence=evidence)


def insufficient_job_row(detail: str) -> RankVerdict:
    """Return the row of a job that could not be evaluated."""
    return RankVerdict(WHOLE_JOB, INSUFFICIENT, Cause("insufficient_data", detail))


def job_row(finding: SlowLink | JobRegression | JobJitter | None, config: StragglerConfig) -> RankVerdict:
    """Return the row of a job that was evaluated: a slow link, a slower job, ranks that are late by turns, or none."""
    if finding is None:
        return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
    severity, evidence = SUSPECT, dict[str, Any]()
    if isinstance(finding, SlowLink):
        cause = Cause("slow_link", "above_own_history", "medium")
        evidence = {"communicator": finding.communicator, "operation": finding.operation}
        evidence |= {"bytes": finding.bytes, "ratio": finding.ratio}
        severity = config.severity(finding.share)
    elif isinstance(finding, JobRegression):
        cause = Cause("changed_job", finding.detail, "medium")
        evidence = {"ratio": finding.ratio, "grew_ns": finding.grew_ns}
    else:
        cause = Cause("jitter", "", "medium")
        evidence = {"turns": {str(rank): round(share, 4) for rank, share in finding.ranks.items()}}
    return RankVerdict(WHOLE_JOB, severity, cause, round(finding.lost_ns), finding.share, evidence=evidence)
