"""Loading a window of steps from the state of a run, as the arrays that it is evaluated on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from drumline.streams.core.records import Rows, stacked
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.pipelines import joined, pipeline_stages
from drumline.streams.stragglers.analysis.window_data import CommunicatorWindow, Ints, WindowData
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import BUDGET


def world_size(state: JobState, window: int) -> int:
    """Return the world size that the ranks reported in this window (an elastic job may change); 0 = unknown."""
    records = (state.rank_rows(window, rank) for rank in state.windows[window].ranks)
    return max((int(r.head["world_size"]) for r in records if r is not None and len(r.rows)), default=0)


def load_window(state: JobState, window: int) -> tuple[WindowData, tuple[int, int]]:
    """Return a window, and its host times: start of the earliest rank, end of the latest; ns, 0 without rows.

    Missing are steps that their rank reported as skipped or without a budget, lateness rows without compared
    collectives, and budgets of another source than most: NCCL's and CUPTI's are not comparable.
    """
    cells = state.windows[window]
    records = ((rank, state.rank_rows(window, rank)) for rank in sorted(cells.ranks))
    rows_of = {rank: record.rows for rank, record in records if record is not None and len(record.rows)}
    ranks = np.array(sorted(rows_of), np.int64)
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(rows["step"] for rows in rows_of.values())]))
    budget = {name: np.full((len(ranks), len(steps)), np.nan) for name in BUDGET}
    light = _mostly_light(rows_of.values())
    left_out = frozenset(i for i, rows in enumerate(rows_of.values()) if _mostly_light([rows]) != light)
    for index, rows in enumerate(rows_of.values()):
        usable = rows[(rows["skipped"] == 0) & (rows["gpu_duration_ns"] > 0) & (rows["comm_exposed_ns"] >= 0)]
        usable = usable[usable["light"] == light]
        at = np.searchsorted(steps, usable["step"])
        for name in BUDGET:
            budget[name][index, at] = usable[name]
    start_ns = min((int(rows["start_ns"].min()) for rows in rows_of.values()), default=0)
    end_ns = max((int((rows["start_ns"] + rows["duration_ns"]).max()) for rows in rows_of.values()), default=0)
    groups = _communicators(state, window, ranks, steps)
    ranks_of = {group.name: frozenset(ranks[group.members].tolist()) for group in groups}
    stages = pipeline_stages(state.pipelines.values(), ranks_of)
    data = WindowData(ranks, steps, budget, groups, light=light, left_out=left_out)
    if stages is None:
        return data, (start_ns, end_ns)
    roles = np.array([stages.get(rank, -1 - rank) for rank in ranks.tolist()], np.int64)
    groups = [replace(group, roles=roles[group.members]) for group in groups]
    pipelines = [np.flatnonzero(np.isin(ranks, list(pipeline))) for pipeline in joined(state.pipelines.values())]
    return replace(data, communicators=groups, pipelines=pipelines), (start_ns, end_ns)


def _mostly_light(parts: Iterable[Rows]) -> bool:
    """Return whether more than half of the steps were measured by NCCL alone."""
    light = [rows["light"] for rows in parts]
    return 2 * sum(int(flags.sum()) for flags in light) > sum(map(len, light))


def _communicators(state: JobState, window: int, ranks: Ints, steps: Ints) -> list[CommunicatorWindow]:
    """Return the group of each communicator that at least two ranks can be compared in."""
    rows_of: dict[str, list[Rows]] = {}
    kinds_of: dict[str, dict[tuple[str, int], np.ndarray]] = {}
    hidden_of: dict[str, np.ndarray] = {}
    known = set(steps.tolist())
    parts = ((*place, part) for place, parts in sorted(state.windows[window].lateness.items()) for part in parts)
    for step, communicator, part in parts:
        record = state.lateness_rows(step, communicator, part)
        if record is not None and step in known:
            rows_of.setdefault(communicator, []).append(record.rows)
            if record.head["hidden"]:
                hidden = hidden_of.setdefault(communicator, np.zeros((3, len(steps))))
                hidden[:, np.searchsorted(steps, step)] = record.head["hidden"]
            for operation, size, *sums in record.head["kinds"]:
                kinds = kinds_of.setdefault(communicator, {})
                kinds.setdefault((operation, size), np.zeros((2, len(steps))))[:, np.searchsorted(steps, step)] = sums
    out = []
    for communicator in sorted(rows_of):
        rows = stacked(rows_of[communicator])
        rows = rows[(rows["collectives"] > 0) & np.isin(rows["rank"], ranks)]
        group = _communicator(communicator, rows, ranks, steps)
        if len(group.members) >= 2:
            size = max(group.size, len(state.members.get(communicator, ())))
            hidden = hidden_of.get(communicator, group.hidden)
            out.append(replace(group, size=size, kinds=kinds_of.get(communicator, {}), hidden=hidden))
    return out


def _communicator(name: str, rows: Rows, ranks: Ints, steps: Ints) -> CommunicatorWindow:
    """Return the group of the ranks that have rows."""
    members = np.unique(rows["rank"])
    row, column = np.searchsorted(members, rows["rank"]), np.searchsorted(steps, rows["step"])
    wait, late, lag, hidden = (np.full((len(members), len(steps)), np.nan) for _ in range(4))
    wait[row, column], late[row, column], lag[row, column] = rows["wait_ns"], rows["lateness_ns"], rows["lag_ns"]
    hidden[row, column] = rows["hidden_wait_ns"]
    worst = np.zeros((len(members), len(steps)), LATENESS_ROW)
    worst[row, column] = rows
    at = np.searchsorted(ranks, members)
    return CommunicatorWindow(name, len(members), at, wait, late, worst, lag, hidden_wait_ns=hidden)
