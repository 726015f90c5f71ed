"""The rows of a verdict: one rank, the job as a whole, what is late together, what it costs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig
from drumline.streams.lateness.collective_join import OPERATIONS
from drumline.streams.stragglers.analysis.attribution import Blame, Meeting, WindowTable
from drumline.streams.stragglers.analysis.cause import NO_CAUSE, Cause, find_cause
from drumline.streams.stragglers.analysis.gpu_cause import PEERS, device_detail
from drumline.streams.stragglers.analysis.groups import groups_late, labels
from drumline.streams.stragglers.analysis.job_change import ChangedJob
from drumline.streams.stragglers.analysis.slow_link import SlowLink

WHOLE_JOB = -1


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """A row of gpu.straggler.v1 without the alarm state; times in ns, money in the configured currency."""

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
        """Whether it holds a rank, not the job as a whole, for late."""
        return self.rank != WHOLE_JOB and self.severity >= SUSPECT


def totals(table: WindowTable) -> tuple[list[int], list[int]]:
    wait, late = np.zeros(len(table.ranks)), np.zeros(len(table.ranks))
    for meeting in table.meetings:
        wait[meeting.members] += np.nansum(meeting.wait_ns, axis=1)
        late[meeting.members] += np.nansum(meeting.lateness_ns, axis=1)
    return [round(v) for v in wait.tolist()], [round(v) for v in late.tolist()]


def rank_row(
    table: WindowTable,
    found: Blame,
    index: int,
    usual_compute_ns: float | None,
    samples: Callable[[int], Rows] | None,
    config: StragglerConfig,
) -> RankVerdict:
    rank, share = int(table.ranks[index]), float(found.share[index])
    severity = config.severity(share)
    lost = round(float(found.lost_ns[index]))
    if severity == OK:
        return RankVerdict(rank, OK, NO_CAUSE, lost, share)
    meeting = table.meetings[int(found.via[index])]
    peers = meeting if meeting.usual is not None else next(p for p in table.paces if index in p.members)
    cause = find_cause(table, peers, _row(peers, index), config, usual_compute_ns, lost)
    seen: dict[str, object] = {}
    if samples is not None and cause.detail == "same_work":
        others = table.ranks[peers.members[peers.members != index]].tolist()
        theirs = [samples(other) for other in others[:: -(-len(others) // PEERS)]]
        detail, seen = device_detail(samples(rank), theirs, cause.slowdown, config)
        cause = replace(cause, detail=detail or cause.detail)
    if meeting.guessed:
        cause, seen = replace(cause, confidence="low"), {**seen, "communicators": "guessed"}
    evidence = {
        **_collective(meeting, index),
        "excess_ns": cause.excess_ns,
        "ratios": cause.ratios,
        "steps": int(found.steps[index]),
        **seen,
    }
    return RankVerdict(rank, severity, cause, lost, share, evidence=evidence)


def _row(meeting: Meeting, index: int) -> int:
    return int(np.flatnonzero(meeting.members == index)[0])


def _collective(meeting: Meeting, index: int) -> dict[str, Any]:
    """The collective in which a rank was latest; of a pipeline without peers, whose ranks meet nobody, the pipeline."""
    if meeting.usual is not None:
        return {"pipeline": meeting.communicator}
    worst = meeting.worst[_row(meeting, index)]
    at = worst[int(np.argmax(worst["worst_longest_ns"] - worst["worst_own_ns"]))]
    which = {"step": int(at["step"]), "ordinal": int(at["worst_ordinal"])}
    return {
        "communicator": meeting.communicator,
        "collective": {"operation": OPERATIONS[int(at["worst_operation"])], **which},
        "longest_ns": int(at["worst_longest_ns"]),
        "own_ns": int(at["worst_own_ns"]),
    }


def grouped(rows: list[RankVerdict], table: WindowTable, hosts: Mapping[int, str]) -> list[RankVerdict]:
    """The rows, with what is late as a whole named in those of its ranks."""
    blamed = {r.rank: (r.cause.cause, r.share) for r in rows if r.names_rank}
    if len(blamed) < 2:
        return rows
    everybody = table.ranks.tolist()
    candidates = labels(
        {rank: hosts.get(rank, "") for rank in everybody},
        {meeting.communicator: table.ranks[meeting.members].tolist() for meeting in table.meetings},
    )
    late = groups_late(blamed, everybody, candidates)
    return [
        replace(
            row, group=late[row.rank], evidence={**row.evidence, "late_together": sorted(candidates[late[row.rank]])}
        )
        if row.rank in late
        else row
        for row in rows
    ]


def job_row(
    judged: bool, why: str, link: SlowLink | None, changed: ChangedJob | None, config: StragglerConfig
) -> RankVerdict:
    """`why`: the detail, if it could not be judged."""
    if not judged:
        return RankVerdict(WHOLE_JOB, INSUFFICIENT, Cause("insufficient_data", why))
    if link is not None:
        cause = Cause("slow_link", "above_own_history", "medium")
        evidence: dict[str, Any] = {"communicator": link.communicator, "operation": link.operation}
        evidence |= {"bytes": link.bytes, "ratio": link.ratio}
        severity, lost = config.severity(link.share), round(link.lost_ns)
        return RankVerdict(WHOLE_JOB, severity, cause, lost, link.share, evidence=evidence)
    if changed is not None:
        cause = Cause("changed_job", changed.detail, "medium")
        evidence = {"ratio": changed.ratio, "grew_ns": changed.grew_ns}
        lost = round(changed.lost_ns)
        return RankVerdict(WHOLE_JOB, SUSPECT, cause, lost, changed.share, evidence=evidence)
    return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
