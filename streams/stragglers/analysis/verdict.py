"""One window of one run judged on its own: a verdict per rank and one (rank -1) for the job as a whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.core.thresholds import INSUFFICIENT, OK, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import (
    Blame,
    Floats,
    Ints,
    Meeting,
    WindowTable,
    blame,
    step_length,
)
from drumline.streams.stragglers.analysis.baseline import Past, of_window, same_work
from drumline.streams.stragglers.analysis.cause import Cause
from drumline.streams.stragglers.analysis.cost import priced
from drumline.streams.stragglers.analysis.job_change import changed_job
from drumline.streams.stragglers.analysis.overlap import hidden
from drumline.streams.stragglers.analysis.peers import paces
from drumline.streams.stragglers.analysis.pipelines import alone, chain_meetings, stages
from drumline.streams.stragglers.analysis.slow_link import slow_link, summarise
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict, grouped, job_row, rank_row, totals

#: Detail of insufficient_data: ranks are there, but met, or were recorded, in few steps of the window.
FEW_STEPS = "few_steps_compared"
#: What gpu.step.v1 says of steps that the producer made out from the collectives.
INFERRED = "inferred"


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
    samples: Callable[[int], Rows] | None = None,
    inferred: bool = False,
) -> WindowVerdict:
    """`world_size`: ranks of the job as told, 0 = unknown. `past`: of the windows before. `hosts`: rank -> host.
    `samples`: rank -> SAMPLE_ROW rows of its GPU during its steps. `inferred`: nobody marked the steps, evidence says
    so.

    A function of its arguments only. Below the quorum of ranks that were compared in enough steps, every row says
    insufficient data: silence is never health.
    """
    usual = past.usual(config)
    table = replace(table, paces=paces(table))
    found = _blame(table, usual, config)
    lonely = alone(table, found)
    if len(lonely):
        table = replace(table, meetings=[*table.meetings, *chain_meetings(table, past, config)])
        found = _blame(table, usual, config)
    expected = max(world_size, len(table.ranks), 1)
    least = config.used_steps * config.window_steps
    enough = found.steps >= least
    present = np.isfinite(table.budget["gpu_duration_ns"]).sum(1) >= least
    quorate, there = (bool(which.sum() >= config.quorum * expected) for which in (enough, present))
    #: Ranks that nothing can be compared with, by the shape of the job.
    unlike = np.isin(np.arange(len(table.ranks)), lonely) | (expected == 1)
    few = len(table.ranks) >= config.quorum * expected and not bool((enough | unlike).all())
    compute = usual["compute_ns"] if usual and same_work(table, usual, config.equal_ratio) else None
    wait, late = totals(table)
    rows = []
    for index, rank in enumerate(table.ranks.tolist()):
        if quorate and enough[index]:
            row = rank_row(table, found, index, compute, samples, config)
        else:
            detail = FEW_STEPS if few and not enough[index] else ""
            detail = detail if not unlike[index] else "no_peers" if expected == 1 else "no_past"
            steps = {"steps": int(found.steps[index])} if detail == FEW_STEPS else {}
            row = RankVerdict(rank, INSUFFICIENT, Cause("insufficient_data", detail), evidence=steps)
        rows.append(replace(row, wait_ns=wait[index], lateness_ns=late[index]))
    rows = grouped(rows, table, hosts or {})
    late_ranks = any(row.names_rank for row in rows)
    judged = quorate or (there and bool((enough | unlike)[present].all()))
    link = slow_link(table, past.links, config) if judged and not late_ranks else None
    changed = changed_job(table, past, config) if judged and not late_ranks and link is None else None
    complete = len(table.ranks) >= expected and bool((enough | unlike).all())
    if not complete and (link is not None or changed is not None):  # a rank that is not heard may be late for all
        judged, link, changed = False, None, None
    if changed is not None and table.chains:
        behind = replace(table, meetings=chain_meetings(table, past, config), paces=[])
        if together := _late_stages(behind, stages(table).values(), samples, config):
            rows = grouped([_as(together.get(row.rank, row), row) for row in rows], table, hosts or {})
            table = replace(table, meetings=[*table.meetings, *behind.meetings])
            late_ranks, changed = True, None
    rows.insert(0, job_row(judged, FEW_STEPS if few else "", link, changed, config))
    healthy = judged and not late_ranks and link is None
    if inferred:
        rows = [replace(row, evidence={**row.evidence, "steps_from": INFERRED}) for row in rows]
    length = step_length(table)
    used = int(found.steps.max(initial=0))
    return WindowVerdict(
        rows=tuple(priced(rows, table, config)),
        ranks_seen=int(enough.sum()),
        steps_used=used,
        steps_skipped=len(table.steps) - used,
        step_ns=round(float(np.nanmedian(length))) if np.isfinite(length).any() else 0,
        past={"links": summarise(table), **of_window(table, stages(table))} if healthy else {},
    )


def _late_stages(
    behind: WindowTable, whole: Iterable[Ints], samples: Callable[[int], Rows] | None, config: StragglerConfig
) -> dict[int, RankVerdict]:
    """Rank -> its row, of ranks that hold a pipeline back with their `whole` stage: of those they are compared with
    nobody is faster, but what they did before takes them longer than before. `behind`: meetings with the past."""
    found = blame(behind, config.quorum)
    rows = [rank_row(behind, found, int(index), None, samples, config) for index in np.flatnonzero(found.via >= 0)]
    late = {row.rank: row for row in rows if row.severity > OK and row.cause.detail not in ("more_work", "other_work")}
    of_stages = [set(behind.ranks[stage].tolist()) for stage in whole if len(stage) > 1]
    return {rank: late[rank] for stage in of_stages if stage <= late.keys() for rank in stage}


def _as(row: RankVerdict, before: RankVerdict) -> RankVerdict:
    return replace(row, wait_ns=before.wait_ns, lateness_ns=before.lateness_ns)


def _blame(table: WindowTable, usual: Mapping[str, float], config: StragglerConfig) -> Blame:
    def unseen(meeting: Meeting) -> Floats:
        return hidden(table, meeting, config.quorum, config.equal_ratio, usual)

    return blame(table, config.quorum, unseen)
