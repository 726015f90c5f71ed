"""The rows of a verdict: one for each rank, one for the job as a whole, and the groups that are late together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.lateness.collective_join import OPERATIONS
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.cause import HOST_STALL, NO_CAUSE, Cause, find_cause
from drumline.streams.stragglers.analysis.gpu_cause import PEERS, device_detail
from drumline.streams.stragglers.analysis.groups import groups_late, labels
from drumline.streams.stragglers.analysis.host_cause import NO_CPU, host_detail
from drumline.streams.stragglers.analysis.job_change import JobRegression
from drumline.streams.stragglers.analysis.slow_link import SlowLink
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, WindowData

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


def rank_row(
    data: WindowData,
    attribution: Attribution,
    index: int,
    baseline_compute_ns: float | None,
    samples: Samples,
    config: StragglerConfig,
) -> RankVerdict:
    """Return the row of the rank at `index` of `data.ranks`. `baseline_compute_ns`: see `find_cause`."""
    rank, share = int(data.ranks[index]), float(attribution.share[index])
    severity = config.severity(share)
    lost = round(float(attribution.lost_ns[index]))
    if severity == OK:
        return RankVerdict(rank, OK, NO_CAUSE, lost, share)
    group = data.communicators[int(attribution.via[index])]
    peers = group if group.baseline is not None else next(g for g in data.lockstep_groups if index in g.members)
    cause = find_cause(data, peers, _row(peers, index), config, baseline_compute_ns, lost)
    more: dict[str, object] = {}
    peer_ranks = data.ranks[peers.members[peers.members != index]].tolist()
    peer_ranks = peer_ranks[:: max(1, -(-len(peer_ranks) // PEERS))]
    if samples.gpu is not None and cause.detail == "same_work":
        of_peers = [samples.gpu(peer) for peer in peer_ranks]
        detail, more = device_detail(samples.gpu(rank), of_peers, cause.slowdown, config)
        cause = replace(cause, detail=detail or cause.detail)
    if samples.host is not None and cause.cause == HOST_STALL:
        time_ns, idle_ns = float(np.nansum(data.budget["gpu_duration_ns"][index])), cause.excess_ns["idle_ns"]
        of_peers = [samples.host(peer) for peer in peer_ranks]
        detail, numbers = host_detail(samples.host(rank), of_peers, time_ns, idle_ns, config)
        more = {"host": numbers} if numbers else {}
        cause = replace(cause, detail=detail if detail in NO_CPU else cause.detail or detail)
    if group.guessed:
        cause, more = replace(cause, confidence="low"), {**more, "communicators": "guessed"}
    evidence = {
        **_collective(group, index),
        "excess_ns": cause.excess_ns,
        "ratios": cause.ratios,
        "steps": int(attribution.steps[index]),
        **more,
    }
    return RankVerdict(rank, severity, cause, lost, share, evidence=evidence)


def _row(group: CommunicatorWindow, index: int) -> int:
    return int(np.flatnonzero(group.members == index)[0])


def _collective(group: CommunicatorWindow, index: int) -> dict[str, Any]:
    """Return the collective in which a rank was latest, or the pipeline of a rank that meets no peers."""
    if group.baseline is not None:
        return {"pipeline": group.name}
    worst = group.worst[_row(group, index)]
    at = worst[int(np.argmax(worst["worst_longest_ns"] - worst["worst_own_ns"]))]
    position = {"step": int(at["step"]), "ordinal": int(at["worst_ordinal"])}
    return {
        "communicator": group.name,
        "collective": {"operation": OPERATIONS[int(at["worst_operation"])], **position},
        "longest_ns": int(at["worst_longest_ns"]),
        "own_ns": int(at["worst_own_ns"]),
    }


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
    return [_in_group(row, label_of[row.rank], candidates) if row.rank in label_of else row for row in rows]


def _in_group(row: RankVerdict, label: str, candidates: Mapping[str, frozenset[int]]) -> RankVerdict:
    together = sorted(candidates[label])
    evidence = {**row.evidence, "late_together": together[:LATE_TOGETHER]}
    if len(together) > LATE_TOGETHER:
        evidence["late_together_count"] = len(together)
    return replace(row, group=label, evidence=evidence)


def insufficient_job_row(detail: str) -> RankVerdict:
    """Return the row of a job that could not be evaluated."""
    return RankVerdict(WHOLE_JOB, INSUFFICIENT, Cause("insufficient_data", detail))


def job_row(link: SlowLink | None, regression: JobRegression | None, config: StragglerConfig) -> RankVerdict:
    """Return the row of a job that was evaluated: a slow link, a slower job, or neither."""
    if link is not None:
        cause = Cause("slow_link", "above_own_history", "medium")
        evidence: dict[str, Any] = {"communicator": link.communicator, "operation": link.operation}
        evidence |= {"bytes": link.bytes, "ratio": link.ratio}
        severity, lost = config.severity(link.share), round(link.lost_ns)
        return RankVerdict(WHOLE_JOB, severity, cause, lost, link.share, evidence=evidence)
    if regression is not None:
        cause = Cause("changed_job", regression.detail, "medium")
        evidence = {"ratio": regression.ratio, "grew_ns": regression.grew_ns}
        lost = round(regression.lost_ns)
        return RankVerdict(WHOLE_JOB, SUSPECT, cause, lost, regression.share, evidence=evidence)
    return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
