"""From the state of a run to the arrays that a window is judged on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drumline.streams.core.records import Rows, stacked
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.attribution import Meeting, WindowTable
from drumline.streams.stragglers.analysis.pipelines_roles import joined, stage_of
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import BUDGET


def world_size(state: JobState, window: int) -> int:
    """Ranks of the job as its ranks were told in this window (an elastic job may change); 0 = unknown."""
    packed = (state.rank_rows(window, rank) for rank in state.windows[window].ranks)
    return max((int(one.head["world_size"]) for one in packed if one is not None and len(one.rows)), default=0)


def window_table(state: JobState, window: int) -> tuple[WindowTable, int, int]:
    """The table, and the window's host start (earliest rank) and end (latest rank); ns, 0 without rows.

    Rows marked as skipped by their rank, or without a budget, count as missing, as do lateness rows without compared
    collectives.
    """
    cells = state.windows[window]
    found = {rank: packed.rows for rank in sorted(cells.ranks) if (packed := state.rank_rows(window, rank))}
    found = {rank: rows for rank, rows in found.items() if len(rows)}
    ranks = np.array(sorted(found), np.int64)
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(rows["step"] for rows in found.values())]))
    budget = {name: np.full((len(ranks), len(steps)), np.nan) for name in BUDGET}
    for index, rows in enumerate(found.values()):
        usable = rows[(rows["skipped"] == 0) & (rows["gpu_duration_ns"] > 0) & (rows["comm_exposed_ns"] >= 0)]
        at = np.searchsorted(steps, usable["step"])
        for name in BUDGET:
            budget[name][index, at] = usable[name]
    start = min((int(rows["start_ns"].min()) for rows in found.values()), default=0)
    end = max((int((rows["start_ns"] + rows["duration_ns"]).max()) for rows in found.values()), default=0)
    meetings = _meetings(state, window, ranks, steps)
    together = {m.communicator: frozenset(ranks[m.members].tolist()) for m in meetings}
    stages = stage_of(state.pipelines.values(), together)
    if stages is None:
        return WindowTable(ranks, steps, budget, meetings), start, end
    roles = np.array([stages.get(rank, -1 - rank) for rank in ranks.tolist()], np.int64)
    meetings = [replace(meeting, roles=roles[meeting.members]) for meeting in meetings]
    chains = [np.flatnonzero(np.isin(ranks, list(chain))) for chain in joined(state.pipelines.values())]
    return WindowTable(ranks, steps, budget, meetings, chains), start, end


def _meetings(state: JobState, window: int, ranks: np.ndarray, steps: np.ndarray) -> list[Meeting]:
    rows_of: dict[str, list[Rows]] = {}
    kinds_of: dict[str, dict[tuple[str, int], np.ndarray]] = {}
    known = set(steps.tolist())
    for step, communicator in sorted(state.windows[window].meetings):
        packed = state.lateness_rows(step, communicator)
        if packed is not None and step in known:
            rows_of.setdefault(communicator, []).append(packed.rows)
            for operation, size, *found in packed.head["kinds"]:
                kinds = kinds_of.setdefault(communicator, {})
                kinds.setdefault((operation, size), np.zeros((2, len(steps))))[:, np.searchsorted(steps, step)] = found
    out = []
    for communicator in sorted(rows_of):
        every = stacked(rows_of[communicator])
        rows = every[(every["collectives"] > 0) & np.isin(every["rank"], ranks)]
        members = np.unique(rows["rank"])
        if len(members) >= 2:
            size = max(len(members), len(state.members.get(communicator, ())))
            meeting = _meeting(communicator, size, rows, members, ranks, steps)
            out.append(replace(meeting, kinds=kinds_of.get(communicator, {})))
    return out


def _meeting(name: str, size: int, rows: Rows, members: np.ndarray, ranks: np.ndarray, steps: np.ndarray) -> Meeting:
    who, when = np.searchsorted(members, rows["rank"]), np.searchsorted(steps, rows["step"])
    wait, late, lag = (np.full((len(members), len(steps)), np.nan) for _ in range(3))
    wait[who, when], late[who, when], lag[who, when] = rows["wait_ns"], rows["lateness_ns"], rows["lag_ns"]
    worst = np.zeros((len(members), len(steps)), LATENESS_ROW)
    worst[who, when] = rows
    at = np.searchsorted(ranks, members)
    return Meeting(name, size, at, wait, late, worst, lag)
