"""The rows of a verdict: one for each rank, one for the job as a whole, and the groups that are late together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.infra.guidance.causes import CHANGED_JOB, INSUFFICIENT_DATA, JITTER, SLOW_LINK
from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import CRITICAL, INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.stragglers.analysis.cause import NO_CAUSE, Cause
from drumline.streams.stragglers.analysis.groups import groups_late, labels
from drumline.streams.stragglers.analysis.jitter import JobJitter
from drumline.streams.stragglers.analysis.job_change import JobRegression
from drumline.streams.stragglers.analysis.slow_link import SlowLink
from drumline.streams.stragglers.analysis.window_data import Ints, WindowData

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


#: Details of insufficient_data. Ranks of the job have never reported a step.
RANKS_MISSING = "ranks_missing"
#: In most steps of the window: nothing is recorded; ranks meet in no collective; theirs do not match each other.
FEW_RECORDED, NO_COLLECTIVES, UNLIKE = "few_steps_recorded", "no_collectives", "unlike_collectives"
#: Too few of its steps could be compared, for several of these reasons or another one.
FEW_STEPS = "few_steps_compared"
#: Its steps are light where most are not, or the other way round.
OTHER_SOURCE = "other_source"
#: Nothing can be compared with by the shape of the job: it has one rank; a stage without replicas, too new.
NO_PEERS, NO_PAST = "no_peers", "no_past"


@dataclass(frozen=True)
class Evaluable:
    """Holds which ranks of a window can be evaluated, and why the others cannot; arrays are bool [R].

    Attributes:
        steps: [R] in which ranks were compared.
        enough: ranks compared in enough steps.
        present: ranks that reported enough steps.
        without_peers: ranks that nothing was compared with, by the shape of the job or in this window.
        expected: ranks of the job.
        quorum: ranks needed.
        left_out: see WindowData.
        replicated: ranks of a pipeline's stage that has others.
        unlike: ranks whose collectives matched those of no other rank, in enough steps.
        known: ranks that reported steps, in this window or another.
        is_single: the window has one step, and too few windows came before: what a rank lost may be chance.
    """

    steps: Ints
    enough: NDArray[np.bool_]
    present: NDArray[np.bool_]
    without_peers: NDArray[np.bool_]
    expected: int
    quorum: float
    left_out: frozenset[int]
    replicated: NDArray[np.bool_]
    unlike: NDArray[np.bool_]
    known: int
    is_single: bool

    @property
    def settled(self) -> NDArray[np.bool_]:
        """Return the ranks whose row is final: compared, or without peers."""
        return self.enough | self.without_peers

    @property
    def quorate(self) -> bool:
        """Return whether enough ranks were compared."""
        return bool(self.enough.sum() >= self.quorum)

    @property
    def job_evaluable(self) -> bool:
        """Return whether the job can be evaluated as a whole."""
        return self.quorate or (bool(self.present.sum() >= self.quorum) and bool(self.settled[self.present].all()))

    @property
    def complete(self) -> bool:
        """Return whether no rank is missing."""
        return len(self.enough) >= self.expected and bool(self.settled.all())

    @property
    def shows_anything(self) -> bool:
        """Return whether a job in which nothing is found is known to be healthy: by its ranks, or by one alone."""
        return self.expected == 1 or (bool(self.enough.any()) and not self.is_single)

    @cached_property
    def reason(self) -> str:
        """Return the detail of a job that cannot be evaluated: its ranks are missing, else that of most of them."""
        if self._too_few_present:
            return RANKS_MISSING if self.known < self.quorum else FEW_RECORDED
        reasons = Counter(filter(None, map(self._reason_at, range(len(self.enough)))))
        if reasons:
            return reasons.most_common(1)[0][0]
        return RANKS_MISSING if self.known < self.expected else FEW_RECORDED

    @cached_property
    def _too_few_present(self) -> bool:
        return bool(self.present.sum() + len(self.left_out) < self.quorum)

    def without_verdict(self, index: int, row: RankVerdict) -> RankVerdict:
        """Return the row of a rank that cannot be evaluated."""
        cause = Cause(INSUFFICIENT_DATA, self._reason_at(index) or self.reason)
        evidence = {"steps": int(self.steps[index])}
        return RankVerdict(
            row.rank, INSUFFICIENT, cause, lateness_ns=row.lateness_ns, wait_ns=row.wait_ns, evidence=evidence
        )

    def _reason_at(self, index: int) -> str:
        if self.expected == 1:
            return NO_PEERS
        if index in self.left_out:
            return OTHER_SOURCE
        if not self.present[index]:
            return FEW_RECORDED
        if self.without_peers[index] and not self.replicated[index]:
            return NO_PAST
        if self.enough[index]:
            return NO_PAST if self.is_single else ""
        if self.left_out and len(self.enough) - len(self.left_out) < self.quorum:
            return OTHER_SOURCE
        if self._too_few_present:
            return ""
        if self.unlike[index]:
            return UNLIKE
        return FEW_STEPS if self.steps[index] else NO_COLLECTIVES


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
    return RankVerdict(WHOLE_JOB, INSUFFICIENT, Cause(INSUFFICIENT_DATA, detail))


def job_row(
    finding: SlowLink | JobRegression | JobJitter | None, hosts: Mapping[int, str], config: StragglerConfig
) -> RankVerdict:
    """Return the row of a job that was evaluated: a slow link, a slower job, ranks that are late by turns, or none."""
    if finding is None:
        return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
    severity, evidence = SUSPECT, dict[str, Any]()
    if isinstance(finding, SlowLink):
        flows = finding.flows
        detail = "above_own_history" if flows is None else flows.extent.detail
        is_by_peers = flows is not None and not finding.by_floors and not flows.alike[0].is_own
        confidence = "low" if is_by_peers else "high" if flows and finding.by_floors else "medium"
        lacks_cpu = finding.cpu_wait > 0.0
        cause = Cause(CHANGED_JOB, "cpu_contention", "low") if lacks_cpu else Cause(SLOW_LINK, detail, confidence)
        evidence = {"communicator": finding.communicator, "ratio": finding.ratio}
        evidence |= {"cpu_wait_share": finding.cpu_wait} if lacks_cpu else {}
        evidence |= {"operation": finding.operation, "bytes": finding.bytes} if finding.by_floors else {}
        evidence |= flows.evidence(hosts) if flows else {}
        may_be_well = is_by_peers or lacks_cpu  # by design, or the network has no part in it
        severity = min(config.severity(finding.share), SUSPECT if may_be_well else CRITICAL)
    elif isinstance(finding, JobRegression):
        cause = Cause(CHANGED_JOB, finding.detail, "medium")
        evidence = {"ratio": finding.ratio, "grew_ns": finding.grew_ns}
    else:
        cause = Cause(JITTER, "", "medium")
        evidence = {"turns": {str(rank): round(share, 4) for rank, share in finding.ranks.items()}}
    return RankVerdict(WHOLE_JOB, severity, cause, round(finding.lost_ns), finding.share, evidence=evidence)
