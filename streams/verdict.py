"""One window of one run judged on its own: a verdict per rank and one (rank -1) for the job as a whole. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.streams.blame import Blame, WindowTable, blame, step_length
from drumline.streams.cause import NO_CAUSE, Cause, find_cause
from drumline.streams.groups import groups_late, labels
from drumline.streams.links import SlowLink, Summary, slow_link, summarise
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
    """`rows`: the job first, then ranks ascending. `summary`: for the links' history; empty unless all was well."""

    rows: tuple[RankVerdict, ...]
    ranks_seen: int
    steps_used: int
    steps_skipped: int
    step_ns: int
    summary: Summary


def judge(
    table: WindowTable,
    world_size: int,
    history: Sequence[Summary],
    config: StragglerConfig,
    hosts: Mapping[int, str] | None = None,
) -> WindowVerdict:
    """`world_size`: ranks of the job as told, 0 = unknown. `history`: summaries of earlier windows, see links.py.
    `hosts`: rank -> host.

    A function of its arguments only. Below the quorum of ranks that were compared in enough steps, every row says
    insufficient data: silence is never health.
    """
    found = blame(table, config.quorum)
    enough = found.steps >= config.used_steps * config.window_steps
    expected = max(world_size, len(table.ranks))
    quorate = bool(enough.sum() >= config.quorum * expected) and expected > 0
    wait, late = _totals(table)
    rows = []
    for index, rank in enumerate(table.ranks.tolist()):
        if quorate and enough[index]:
            row = _rank(table, found, index, config)
        else:
            row = RankVerdict(rank, INSUFFICIENT, INSUFFICIENT_DATA)
        rows.append(replace(row, wait_ns=wait[index], lateness_ns=late[index]))
    rows = _grouped(rows, table, hosts or {})
    late_ranks = any(SUSPECT <= row.severity < INSUFFICIENT for row in rows)
    link = slow_link(table, history, config) if quorate and not late_ranks else None
    rows.insert(0, _job(quorate, link, config))
    healthy = quorate and not late_ranks and link is None
    length = step_length(table)
    used = int(found.steps.max(initial=0))
    return WindowVerdict(
        rows=tuple(_priced(row, len(table.ranks), config) for row in rows),
        ranks_seen=int(enough.sum()),
        steps_used=used,
        steps_skipped=len(table.steps) - used,
        step_ns=round(float(np.nanmedian(length))) if np.isfinite(length).any() else 0,
        summary=summarise(table) if healthy else {},
    )


def _totals(table: WindowTable) -> tuple[list[int], list[int]]:
    wait, late = np.zeros(len(table.ranks)), np.zeros(len(table.ranks))
    for meeting in table.meetings:
        wait[meeting.members] += np.nansum(meeting.wait_ns, axis=1)
        late[meeting.members] += np.nansum(meeting.lateness_ns, axis=1)
    return [round(v) for v in wait.tolist()], [round(v) for v in late.tolist()]


def _rank(table: WindowTable, found: Blame, index: int, config: StragglerConfig) -> RankVerdict:
    rank, share = int(table.ranks[index]), float(found.share[index])
    severity = config.severity(share)
    lost = round(float(found.lost_ns[index]))
    if severity == OK:
        return RankVerdict(rank, OK, NO_CAUSE, lost, share)
    meeting = table.meetings[int(found.via[index])]
    member = int(np.flatnonzero(meeting.members == index)[0])
    cause = find_cause(table, meeting, member, config)
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


def _job(quorate: bool, link: SlowLink | None, config: StragglerConfig) -> RankVerdict:
    if not quorate:
        return RankVerdict(WHOLE_JOB, INSUFFICIENT, INSUFFICIENT_DATA)
    severity = config.severity(link.share) if link else OK
    if link is None or severity == OK:
        return RankVerdict(WHOLE_JOB, OK, NO_CAUSE)
    cause = Cause("slow_link", "above_own_history", "medium")
    evidence = {"communicator": link.communicator, "ratio": link.ratio}
    lost = round(link.lost_ns)
    return RankVerdict(WHOLE_JOB, severity, cause, lost, link.share, evidence=evidence)
