"""From the state of a run to the arrays that a window is judged on."""

from __future__ import annotations

import numpy as np

from drumline.streams.blame import Meeting, WindowTable
from drumline.streams.budgets import BUDGET
from drumline.streams.job_state import JobState
from drumline.streams.matching import LATENESS_ROW
from drumline.streams.packed_rows import Rows


def window_table(state: JobState, window: int) -> tuple[WindowTable, int, int]:
    """The table, and the window's host start (earliest rank) and end (latest rank); ns, 0 without rows.

    Rows marked as skipped by their rank count as missing, as do lateness rows without compared collectives.
    """
    cells = state.windows[window]
    found = {rank: packed.rows for rank in sorted(cells.ranks) if (packed := state.rank_rows(window, rank))}
    found = {rank: rows for rank, rows in found.items() if len(rows)}
    ranks = np.array(sorted(found), np.int64)
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(rows["step"] for rows in found.values())]))
    budget = {name: np.full((len(ranks), len(steps)), np.nan) for name in BUDGET}
    for index, rows in enumerate(found.values()):
        usable = rows[rows["skipped"] == 0]
        at = np.searchsorted(steps, usable["step"])
        for name in BUDGET:
            budget[name][index, at] = usable[name]
    start = min((int(rows["start_ns"].min()) for rows in found.values()), default=0)
    end = max((int((rows["start_ns"] + rows["duration_ns"]).max()) for rows in found.values()), default=0)
    return WindowTable(ranks, steps, budget, _meetings(state, window, ranks, steps)), start, end


def _meetings(state: JobState, window: int, ranks: np.ndarray, steps: np.ndarray) -> list[Meeting]:
    rows_of: dict[str, list[Rows]] = {}
    known = set(steps.tolist())
    for step, communicator in sorted(state.windows[window].meetings):
        packed = state.lateness_rows(step, communicator)
        if packed is not None and step in known:
            rows_of.setdefault(communicator, []).append(packed.rows)
    out = []
    for communicator in sorted(rows_of):
        rows = np.concatenate(rows_of[communicator])
        rows = rows[(rows["collectives"] > 0) & np.isin(rows["of_rank"], ranks)]
        members = np.unique(rows["of_rank"])
        if len(members) >= 2:
            size = max(len(members), state.sizes.get(communicator, 0))
            out.append(_meeting(communicator, size, rows, members, ranks, steps))
    return out


def _meeting(name: str, size: int, rows: Rows, members: np.ndarray, ranks: np.ndarray, steps: np.ndarray) -> Meeting:
    who, when = np.searchsorted(members, rows["of_rank"]), np.searchsorted(steps, rows["step"])
    wait, late = (np.full((len(members), len(steps)), np.nan) for _ in range(2))
    wait[who, when], late[who, when] = rows["wait_ns"], rows["lateness_ns"]
    floor, size_bytes, collectives = (np.zeros(len(steps)) for _ in range(3))
    floor[when], size_bytes[when], collectives[when] = rows["floor_ns"], rows["bytes"], rows["collectives"]
    worst = np.zeros((len(members), len(steps)), LATENESS_ROW)
    worst[who, when] = rows
    return Meeting(name, size, np.searchsorted(ranks, members), wait, late, floor, size_bytes, collectives, worst)
