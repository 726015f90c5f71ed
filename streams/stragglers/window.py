"""Loading a window of steps from the state of a run, as the arrays that it is evaluated on.

A window of a large job has tens of thousands of stored values. Each is touched once, and all rows are placed together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import Rows, parse_head, unpack_all
from drumline.streams.stragglers.analysis.pipelines import joined, pipeline_stages
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, Floats, Ints, WindowData
from drumline.streams.stragglers.lateness_rows import KEPT_ROW
from drumline.streams.stragglers.slices import RANKS_OF_VALUE
from drumline.streams.stragglers.state import JobState
from drumline.streams.stragglers.step_rows import BUDGET, STEP_ROW, rows_between

#: (operation, bytes) -> [2, S]: see CommunicatorWindow.kinds.
Kinds = dict[tuple[str, int], Floats]
#: Values of steps that are read together: caches hold them while each column is taken out.
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
    data, span_ns = _steps(state, window)
    communicators, pairs, unlike = _communicators(state, window, data)
    data = replace(data, communicators=communicators, pairs=pairs, unlike=unlike)
    present, reports = set(data.ranks.tolist()), state.blocks[state.lengths.block_of(window)].reports.values()
    sizes = (report.world_size for of_ranks in reports for rank, report in of_ranks.items() if rank in present)
    return LoadedWindow(_with_pipelines(state, data), span_ns, max(sizes, default=0))


def _steps(state: JobState, window: int) -> tuple[WindowData, tuple[int, int]]:
    """Return a window of stored steps, without its communicators, and their span.

    A value has all rows of a slice of ranks in the window's block. So some values at a time go to their places, and the
    window of a large job is nowhere else as a whole.
    """
    block, (first, last) = state.lengths.block_of(window), state.lengths.steps_of(window)
    parts, size = np.array(sorted(state.blocks[block].reports), np.int64), last + 1 - first
    all_ranks = (parts[:, None] * RANKS_OF_VALUE + np.arange(RANKS_OF_VALUE)).ravel()
    shape = len(all_ranks), size
    has_row, is_light = np.zeros(shape, bool), np.zeros(shape, bool)
    collected = _WindowBudget(shape)
    begins, ends = list[int](), list[int]()
    for at in range(0, len(parts), PASS_VALUES):
        rows = unpack_all(state.steps.values(block, parts[at : at + PASS_VALUES].tolist()), STEP_ROW)[2]
        rows = rows if size == state.config.window_steps else rows_between(rows, first, last)
        index = np.searchsorted(parts, rows["rank"] // RANKS_OF_VALUE) * RANKS_OF_VALUE + rows["rank"] % RANKS_OF_VALUE
        rows, place = _latest(rows, index * size + rows["step"] - first)
        if len(rows):
            collected.put(rows, place)
            at_rows = _as_slice(place)
            has_row.ravel()[at_rows], is_light.ravel()[at_rows] = True, rows["light"]
            begins.append(int(rows["start_ns"].min()))
            ends.append(int((rows["start_ns"] + rows["duration_ns"]).max()))
    of_ranks, of_steps = np.flatnonzero(has_row.any(1)), np.flatnonzero(has_row.any(0))
    counts, lights = has_row.sum(1)[of_ranks], is_light.sum(1)[of_ranks]
    light = bool(2 * lights.sum() > counts.sum())
    left_out = frozenset(np.flatnonzero((2 * lights > counts) != light).tolist())
    inside = None if (len(of_ranks), len(of_steps)) == shape else np.ix_(of_ranks, of_steps)
    budget = collected.budget(has_row & (is_light != light), inside)
    span_ns = min(begins, default=0), max(ends, default=0)
    ranks, steps = all_ranks[of_ranks], first + of_steps
    return WindowData(ranks, steps, budget, light=light, left_out=left_out, number=window), span_ns


def _latest(rows: Rows, place: Ints) -> tuple[Rows, Ints]:
    """Return each step of a rank once, as `latest_steps` does, by place. `place`: of each row, by rank and step."""
    if not len(place):
        return rows, place
    first = int(place.min())
    number = np.full(int(place.max()) - first + 1, -1)
    number[place - first] = np.arange(len(place))
    kept = number[number >= 0]
    if len(kept) < len(place):
        order = np.lexsort((rows["start_ns"], place))
        kept = order[np.append(place[order[1:]] != place[order[:-1]], True)]
    return rows[kept], place[kept]


class _WindowBudget:
    """Collects the budgets of a window, by rank and step. A column that is the same in all rows is one number."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self._usable = np.zeros(shape, bool)
        self._numbers: dict[str, float] = {}
        self._values: dict[str, Floats] = {}

    def put(self, rows: Rows, place: Ints) -> None:
        """Put rows that have a budget in their places, which rise."""
        usable = (rows["skipped"] == 0) & (rows["gpu_duration_ns"] > 0) & (rows["comm_exposed_ns"] >= 0)
        if not usable.all():
            rows, place = rows[usable], place[usable]
        at = _as_slice(place)
        for name in BUDGET if len(rows) else ():
            if name not in self._values:
                number = self._numbers.setdefault(name, rows[name][0])
                if (rows[name] == number).all():  # such as -1, what a producer does not know
                    continue
                self._values[name] = np.where(self._usable, number, np.nan)
            self._values[name].ravel()[at] = rows[name]
        self._usable.ravel()[at] = True

    def budget(self, is_other: NDArray[np.bool_], inside: tuple[Ints, ...] | None) -> dict[str, Floats]:
        """Return column -> [R, S], of ranks and steps `inside`; None = of all. `is_other`: steps that are missing."""
        usable, out = self._usable & ~is_other, {}
        for name in BUDGET:
            values = self._values.pop(name, None)
            if values is not None and is_other.any():
                values[is_other] = np.nan
            elif values is None:
                number = np.float64(self._numbers.get(name, np.nan))
                values = np.broadcast_to(number, usable.shape) if usable.all() else np.where(usable, number, np.nan)
            out[name] = values if inside is None else values[inside]
        return out


def _as_slice(place: Ints) -> Ints | slice:
    """Return rising places as a slice if none is left out, as nearly always: it is filled much faster."""
    is_whole = len(place) and place[-1] - place[0] == len(place) - 1
    return slice(int(place[0]), int(place[-1]) + 1) if is_whole else place


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


def _communicators(
    state: JobState, window: int, data: WindowData
) -> tuple[list[CommunicatorWindow], list[CommunicatorWindow], Ints]:
    """Return the group of each communicator that at least two ranks can be compared in, `WindowData.pairs`, `unlike`.

    `data`: without them.
    """
    column = {step: at for at, step in enumerate(data.steps.tolist())}
    out, pairs = list[CommunicatorWindow](), list[CommunicatorWindow]()
    unlike, met = np.zeros((2, len(data.ranks), len(data.steps)), bool)
    for stored in state.lateness.stored(state.blocks[state.lengths.block_of(window)].lateness, column):
        heads, counts, rows = unpack_all(stored.values, KEPT_ROW)
        names = sorted(set(stored.names))
        number = {name: at for at, name in enumerate(names)}
        communicator = np.repeat(np.array([number[name] for name in stored.names], np.int64), counts)
        kinds, hidden = _lists(zip(stored.names, heads, strict=True), column)
        groups = _groups(rows, communicator, names, data)
        for group in groups:
            size = max(group.size, len(state.communicators.members.get(group.name, ())))
            shown = hidden.get(group.name, group.hidden)
            out.append(replace(group, size=size, kinds=kinds.get(group.name, {}), hidden=shown))
            met[group.members] |= np.isfinite(group.wait_ns)
        without_group = kinds.keys() - {group.name for group in groups}
        pairs += _pairs({name: kinds[name] for name in sorted(without_group)}, number, rows, communicator, data)
        _add_unlike(rows, data, unlike)
    return out, pairs, (unlike & ~met).sum(1)


def _pairs(
    kinds: Mapping[str, Kinds], number: Mapping[str, int], rows: Rows, communicator: Ints, data: WindowData
) -> list[CommunicatorWindow]:
    """Return the groups of two ranks that only send each other something; none where the window lacks one of them.

    `kinds`: of their communicators, by name. `number`, `communicator`: as for `_groups`, with rising names.
    """
    of = np.array([number[name] for name in kinds], np.int64)
    at = np.flatnonzero(np.isin(communicator, of) & np.isin(rows["rank"], data.ranks))
    base = max(1, len(data.ranks))
    places = np.unique(communicator[at] * base + np.searchsorted(data.ranks, rows["rank"][at]))
    begins, ends = np.searchsorted(places, of * base).tolist(), np.searchsorted(places, (of + 1) * base).tolist()
    unknown, no_worst = np.broadcast_to(np.nan, (2, len(data.steps))), np.zeros(2, WORST_ROW)
    return [
        CommunicatorWindow(name, 2, places[begin:end] % base, unknown, unknown, no_worst, kinds=kinds[name])
        for name, begin, end in zip(kinds, begins, ends, strict=True)
        if end - begin == 2
    ]


def _add_unlike(rows: Rows, data: WindowData, unlike: NDArray[np.bool_]) -> None:
    """Mark in `unlike`, [R, S], the steps in which a rank's collectives could not be compared."""
    rows = rows[rows["collectives"] == 0]
    if len(rows):
        rows = rows[np.isin(rows["rank"], data.ranks) & np.isin(rows["step"], data.steps)]
        unlike[np.searchsorted(data.ranks, rows["rank"]), np.searchsorted(data.steps, rows["step"])] = True


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


def _groups(rows: Rows, communicator: Ints, names: list[str], data: WindowData) -> list[CommunicatorWindow]:
    """Return the groups of at least two ranks, as parts of arrays of all. `communicator`: of each row, as an index."""
    ranks, steps = data.ranks, data.steps
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

    wait, late, lag = map(placed, ("wait_ns", "lateness_ns", "lag_ns"))
    hidden = placed("hidden_wait_ns") if data.light else np.broadcast_to(np.nan, shape)  # read of light windows only
    worst = _worst(rows[at], row, column[at], shape)
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


def _worst(rows: Rows, row: Ints, column: Ints, shape: tuple[int, int]) -> NDArray[np.void]:
    """Return [m] the collective in which each member was latest. `row`, `column`: places of the rows in `shape`."""
    later, number = np.zeros(shape, np.int64), np.full(shape, -1, np.int32)
    later[row, column] = rows["worst_longest_ns"] - rows["worst_own_ns"]
    number[row, column] = np.arange(len(rows))
    latest = number[np.arange(shape[0]), later.argmax(1)]
    worst = np.zeros(shape[0], WORST_ROW)
    for name in WORST_ROW.names or ():
        worst[name] = np.where(latest >= 0, rows[name][latest], 0)
    return worst
