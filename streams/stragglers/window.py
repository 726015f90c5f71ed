"""Loading a window of steps from the state of a run, as the arrays that it is evaluated on.

A window of a large job has tens of thousands of stored values. Each is touched once, and all rows are placed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.columns import Array
from drumline.streams.core.records import Rows, parse_head, unpack_all
from drumline.streams.stragglers.analysis.pipelines import joined, pipeline_stages
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, Floats, Ints, WindowData
from drumline.streams.stragglers.lateness_rows import KEPT_ROW
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import BUDGET, STEP_ROW

#: (operation, bytes) -> [2, S]: see CommunicatorWindow.kinds.
Kinds = dict[tuple[str, int], Floats]
Columns = dict[str, Array]
_STORED = STEP_ROW.names or ()
#: Values of steps that are read together: some MB.
PASS_VALUES = 64


class LoadedWindow(NamedTuple):
    """Holds a window as it is stored.

    Attributes:
        data: its arrays.
        span_ns: host times, the start of the earliest rank and the end of the latest; 0 without rows.
        world_size: as the ranks reported it in this window (an elastic job may change); 0 = unknown.
    """

    data: WindowData
    span_ns: tuple[int, int]
    world_size: int


def load_window(state: JobState, window: int) -> LoadedWindow:
    """Return a window.

    Missing are steps that their rank reported as skipped or without a budget, lateness rows without compared
    collectives, and budgets of another source than most: NCCL's and CUPTI's are not comparable.
    """
    data, span_ns = _steps(state.steps.values(window, sorted(state.windows[window].reports)))
    data = replace(data, communicators=_communicators(state, window, data.ranks, data.steps))
    present, reports = set(data.ranks.tolist()), state.windows[window].reports.values()
    sizes = (report.world_size for of_ranks in reports for rank, report in of_ranks.items() if rank in present)
    return LoadedWindow(_with_pipelines(state, data), span_ns, max(sizes, default=0))


def _steps(values: Sequence[bytes]) -> tuple[WindowData, tuple[int, int]]:
    """Return the window of stored steps, without its communicators, and their span."""
    columns = _columns(values)
    ranks, steps = np.unique(columns["rank"]).astype(np.int64), np.unique(columns["step"])
    place = np.searchsorted(ranks, columns["rank"]) * len(steps) + np.searchsorted(steps, columns["step"])
    columns, place = _latest(columns, place)
    index, flags = place // max(1, len(steps)), columns["light"]
    light = 2 * int(flags.sum()) > len(flags)
    is_light = 2 * np.bincount(index, flags, len(ranks)) > np.bincount(index, minlength=len(ranks))
    left_out = frozenset(np.flatnonzero(is_light != light).tolist())
    budget = _budget(columns, place, flags == light, (len(ranks), len(steps)))
    start_ns = int(columns["start_ns"].min()) if len(place) else 0
    end_ns = int((columns["start_ns"] + columns["duration_ns"]).max()) if len(place) else 0
    return WindowData(ranks, steps, budget, light=light, left_out=left_out), (start_ns, end_ns)


def _columns(values: Sequence[bytes]) -> Columns:
    """Return the columns of stored steps: some values at a time, which caches hold while each column is taken out."""
    parts: list[list[Array]] = []
    for at in range(0, max(1, len(values)), PASS_VALUES):
        rows = unpack_all(values[at : at + PASS_VALUES], STEP_ROW)[2]
        parts.append([rows[name].copy() for name in _STORED])
    return {name: np.concatenate(of_passes) for name, of_passes in zip(_STORED, zip(*parts, strict=True), strict=True)}


def _latest(columns: Columns, place: Ints) -> tuple[Columns, Ints]:
    """Return each step of a rank once, as `latest_steps` does. `place`: of each row, by rank and step."""
    if not len(place) or np.bincount(place).max() == 1:
        return columns, place
    order = np.lexsort((columns["start_ns"], place))
    kept = order[np.append(place[order[1:]] != place[order[:-1]], True)]
    return {name: column[kept] for name, column in columns.items()}, place[kept]


def _budget(columns: Columns, place: Ints, is_alike: NDArray[np.bool_], shape: tuple[int, int]) -> dict[str, Floats]:
    """Return column -> [R, S]. `place`: of each row, by rank and step; `is_alike`: it has the source of most rows."""
    usable = is_alike & (columns["skipped"] == 0) & (columns["gpu_duration_ns"] > 0) & (columns["comm_exposed_ns"] >= 0)
    at = np.flatnonzero(usable)
    budget = {}
    for name in BUDGET:
        values = np.full(shape[0] * shape[1], np.nan)
        values[place[at]] = columns[name][at]
        budget[name] = values.reshape(shape)
    return budget


def _with_pipelines(state: JobState, data: WindowData) -> WindowData:
    """Return the window with the pipelines, and the stages of ranks as their roles."""
    ranks = data.ranks
    ranks_of = {group.name: frozenset(ranks[group.members].tolist()) for group in data.communicators}
    stages = pipeline_stages(state.communicators.pipelines.values(), ranks_of)
    if stages is None:
        return data
    roles = np.array([stages.get(rank, -1 - rank) for rank in ranks.tolist()], np.int64)
    groups = [replace(group, roles=roles[group.members]) for group in data.communicators]
    index = {rank: at for at, rank in enumerate(ranks.tolist())}
    pipelines = [
        np.array(sorted(index[rank] for rank in pipeline if rank in index), np.int64)
        for pipeline in joined(state.communicators.pipelines.values())
    ]
    return replace(data, communicators=groups, pipelines=pipelines)


def _communicators(state: JobState, window: int, ranks: Ints, steps: Ints) -> list[CommunicatorWindow]:
    """Return the group of each communicator that at least two ranks can be compared in."""
    column = {step: at for at, step in enumerate(steps.tolist())}
    out: list[CommunicatorWindow] = []
    for stored in state.lateness.stored(state.windows[window].lateness, column):
        heads, counts, rows = unpack_all(stored.values, KEPT_ROW)
        names = sorted(set(stored.names))
        number = {name: at for at, name in enumerate(names)}
        communicator = np.repeat(np.array([number[name] for name in stored.names], np.int64), counts)
        kinds, hidden = _lists(zip(stored.names, heads, strict=True), column)
        for group in _groups(rows, communicator, names, (ranks, steps)):
            size = max(group.size, len(state.communicators.members.get(group.name, ())))
            shown = hidden.get(group.name, group.hidden)
            out.append(replace(group, size=size, kinds=kinds.get(group.name, {}), hidden=shown))
    return out


def _lists(
    of_values: Iterable[tuple[str, bytes]], column: Mapping[int, int]
) -> tuple[dict[str, Kinds], dict[str, Floats]]:
    """Return communicator -> its kinds of collectives, and what shows hidden waits.

    `of_values`: communicator and head. `column`: step of the window -> its index.
    """
    kinds: dict[str, Kinds] = defaultdict(dict)
    hidden: dict[str, Floats] = {}
    for name, head in of_values:
        for step, lists in parse_head(head)["steps"].items():
            at = column.get(int(step))
            if at is None:
                continue
            if lists["hidden"]:
                hidden.setdefault(name, np.zeros((3, len(column))))[:, at] = lists["hidden"]
            for operation, size, count, floor_ns in lists["kinds"]:
                sums = kinds[name].get((operation, size))
                if sums is None:
                    sums = kinds[name][operation, size] = np.zeros((2, len(column)))
                sums[0, at], sums[1, at] = count, floor_ns
    return kinds, hidden


def _groups(rows: Rows, communicator: Ints, names: list[str], axes: tuple[Ints, Ints]) -> list[CommunicatorWindow]:
    """Return the groups of at least two ranks, as parts of arrays of all. `communicator`: of each row, as an index."""
    ranks, steps = axes
    base = max(1, len(ranks))
    index = np.searchsorted(ranks, rows["rank"])
    column = np.searchsorted(steps, rows["step"])
    is_known = (np.append(ranks, -1)[index] == rows["rank"]) & (np.append(steps, -1)[column] == rows["step"])
    at = np.flatnonzero(is_known & (rows["collectives"] > 0))
    pairs, row = np.unique(communicator[at] * base + index[at], return_inverse=True)
    place, shape = (row, column[at]), (len(pairs), len(steps))

    def placed(name: str) -> Floats:
        out = np.full(shape, np.nan)
        out[place] = rows[name][at]
        return out

    wait, late, lag, hidden = map(placed, ("wait_ns", "lateness_ns", "lag_ns", "hidden_wait_ns"))
    worst = np.zeros(shape, WORST_ROW)
    for name in WORST_ROW.names or ():
        worst[name][place] = rows[name][at]
    members, ends = pairs % base, np.searchsorted(pairs, np.arange(len(names) + 1) * base).tolist()
    parts = ((name, slice(first, end)) for name, (first, end) in zip(names, pairwise(ends), strict=True))
    return [
        CommunicatorWindow(
            name, len(members[part]), members[part], wait[part], late[part], worst[part], lag[part],
            hidden_wait_ns=hidden[part],
        )
        for name, part in parts
        if len(members[part]) >= 2
    ]  # fmt: skip
