"""One window of one run judged on its own: a verdict per rank and one (rank -1) for the job as a whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.streams.blame import Blame, WindowTable, blame, step_length
from drumline.streams.cause import NO_CAUSE, Cause, find_cause
from drumline.streams.chains import alone, chain_meetings
from drumline.streams.changed import ChangedJob, changed_job
from drumline.streams.groups import groups_late, labels
from drumline.streams.lag import with_lag
from drumline.streams.links import SlowLink, slow_link, summarise
from drumline.streams.past import STEP, Past, of_window, same_work
from drumline.streams.thresholds import INSUFFICIENT, OK, SUSPECT, StragglerConfig

WHOLE_JOB = -1
INSUFFICIENT_DATA = Cause("insufficient_data")


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


@dataclass(frozen=True, slots=True)
class WindowVerdict:
    """`rows`: the job first, then ranks ascending. `past`: what later windows compare with; empty if a rank was late, a
    link slow, or too little came."""

    rows: tuple[RankVerdict, ...]
    ranks_seen: int
    steps_used: int
    steps_skipped: int
    step_ns: int
    past: dict[str, Any]


def judge(
    table: WindowTable,
    world_size: int,
    past: Past,
    config: StragglerConfig,
    hosts: Mapping[int, str] | None = None,
) -> WindowVerdict:
    """`world_size`: ranks of the job as told, 0 = unknown. `past`: of the windows before. `hosts`: rank -> host.

    A function of its arguments only. Below the quorum of ranks that were compared in enough steps, every row says
    insufficient data: silence is never health.
    """
    found = blame(table, config.quorum)
    lonely = alone(table, found)
    if len(lonely):
        table = replace(table, meetings=[*table.meetings, *chain_meetings(table, past, config)])
        found = blame(table, config.quorum)
    usual = past.usual(config)
    if usual:
        found = with_lag(table, found, usual[STEP])
    least = config.used_steps * config.window_steps
    enough = found.steps >= least
    present = np.isfinite(table.budget["gpu_duration_ns"]).sum(1) >= least
    expected = max(world_size, len(table.ranks), 1)
    quorate, there = (bool(which.sum() >= config.quorum * expected) for which in (enough, present))
    #: Ranks that nothing can be compared with, by the shape of the job.
    unlike = np.isin(np.arange(len(table.ranks)), lonely) | (expected == 1)
    compute = usual["compute_ns"] if usual and same_work(table, usual, config) else None
    wait, late = _totals(table)
    rows = []
    for index, rank in enumerate(table.ranks.tolist()):
        if quorate and enough[index]:
            row = _rank(table, found, index, compute, config)
        else:
            detail = "" if not unlike[index] else "no_peers" if expected == 1 else "no_past"
            row = RankVerdict(rank, INSUFFICIENT, Cause("insufficient_data", detail))
        rows.append(replace(row, wait_ns=wait[index], lateness_ns=late[index]))
    rows = _grouped(rows, table, hosts or {})
    late_ranks = any(SUSPECT <= row.severity < INSUFFICIENT for row in rows)
    judged = quorate or (there and bool((enough | unlike)[present].all()))
    link = slow_link(table, past.links, config) if judged and not late_ranks else None
    changed = changed_job(table, past, config) if judged and not late_ranks and link is None else None
    rows.insert(0, _job(judged, link, changed, config))
    healthy = judged and not late_ranks and link is None
    length = step_length(table)
    used = int(found.steps.max(initial=0))
    return WindowVerdict(
        rows=tuple(_priced(row, len(table.ranks), config) for row in rows),
        ranks_seen=int(enough.sum()),
        steps_used=used,
        steps_skipped=len(table.steps) - used,
        step_ns=round(float(np.nanmedian(length))) if np.isfinite(length).any() else 0,
        past={"links": summarise(table), **of_window(table, lonely.tolist())} if healthy else {},
    )


def _totals(table: WindowTable) -> tuple[list[int], list[int]]:
    wait, late = np.zeros(len(table.ranks)), np.zeros(len(table.ranks))
    for meeting in table.meetings:
        wait[meeting.members] += np.nansum(meeting.wait_ns, axis=1)
        late[meeting.members] += np.nansum(meeting.lateness_ns, axis=1)
    return [round(v) for v in wait.tolist()], [round(v) for v in late.tolist()]


def _rank(
    table: WindowTable, found: Blame, index: int, usual_compute_ns: float | None, config: StragglerConfig
) -> RankVerdict:
    rank, share = int(table.ranks[index]), float(found.share[index])
    severity = config.severity(share)
    lost = round(float(found.lost_ns[index]))
    if severity == OK:
        return RankVerdict(rank, OK, NO_CAUSE, lost, share)
    meeting = table.meetings[int(found.via[index])]
    member = int(np.flatnonzero(meeting.members == index)[0])
    cause = find_cause(table, meeting, member, config, usual_compute_ns)
    worst = meeting.worst[member]
    at = worst[int(np.argmax(worst["worst_longest_ns"] - worst["worst_own_ns"]))]
    evidence = {
        "communicator": meeting.communicator,
        "collective": {"step": int(at["step"]), "ordinal": int(at["worst_ordinal"])},
        "longest_ns": int(at["worst_longest_ns"]),
        "own_ns": int(at["worst_own_ns"]),
        "excess_ns": cause.excess_ns,
        "ratios": cause.ratios,
        "steps": int(found.steps[index]),
    }
    return RankVerdict(rank, severity, cause, lost, share, evidence=evidence)


def _grouped(rows: list[RankVerdict], table: WindowTable, hosts: Mapping[int, str]) -> list[RankVerdict]:
    """The rows, with what is late as a whole named in those of its ranks."""
    blamed = {r.rank: (r.cause.cause, r.share) for r in rows if SUSPECT <= r.severity < INSUFFICIENT}
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


def _priced(row: RankVerdict, ranks: int, config: StragglerConfig) -> RankVerdict:
    """With the GPU-seconds that the others (all, where the job as a whole lost) spent waiting, and their price."""
    seconds = row.lost_ns / 1e9 * (ranks if row.rank == WHOLE_JOB else max(0, ranks - 1))
    return replace(row, gpu_seconds_lost=seconds, money_lost=seconds / 3600.0 * config.price_per_gpu_hour)


def _job(judged: bool, link: SlowLink | None, changed: ChangedJob | None, config: StragglerConfig) -> RankVerdict:
    if not judged:
        return RankVerdict(WHOLE_JOB, INSUFFICIENT, INSUFFICIENT_DATA)
    if link is not None and config.severity(link.share) > OK:
        cause = Cause("slow_link", "above_own_history", "medium")
        evidence: dict[str, Any] = {"communicator": link.communicator, "ratio": link.ratio}
        severity, lost = config.severity(link.share), round(link.lost_ns)
        return RankVerdict(WHOLE_JOB, severity, cause, lost, link.share, evidence=evidence)
    if changed is not None:
        cause = Cause("changed_job", changed.detail, "medium")
        evidence = {"ratio": changed.ratio, "grew_ns": changed.grew_ns}
        lost = round(changed.lost_ns)
        return RankVerdict(WHOLE_JOB, SUSPECT, cause, lost, changed.share, evidence=evidence)
    return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
