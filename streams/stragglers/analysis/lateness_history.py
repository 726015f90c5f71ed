"""Lateness of ranks in one window, as the test of chance counts it, and in earlier ones, of what was kept of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.window_data import Floats, Ints, WindowData, step_length
from drumline.streams.stragglers.rank_values import ranks_of

#: Values of an earlier window, ns a step: lateness of its latest rank, the step without what a slow link took, and from
#: WORK on what ranks work: the least busy one without what it lost, then each of some ranks (see rank_naming.py).
LATE, STEP, WORK = range(3)
#: So many ranks at most, spread over the job.
WORK_RANKS = 16
#: One step in so many may be late without a reason: a checkpoint, a pause.
ODD_STEPS = 10
#: Ranks compared in fewer than this part of the steps of others are not late: what they lost is of a few steps.
COMPARED = 0.5


@dataclass(frozen=True, slots=True)
class Odds:
    """Holds the odds that a rank is late for a reason: one value for each of `likelihood_ratios`.

    Attributes:
        values: RATIOS of them.
        since: the first window of those that they rest on.
        cost: the most that the rank cost in one of them; ns a step.
        is_named: they are as large as a name needs.
    """

    values: tuple[float, ...]
    since: int
    cost: float = 0.0
    is_named: bool = False

    @property
    def mean(self) -> float:
        """Return the mean of the values, which counts."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class LatenessHistory:
    """Holds how late ranks were in the windows before.

    Attributes:
        windows: [n] numbers of the last ones that no reason explains, rising.
        values: [n, 3 + k] LATE and STEP of each, from WORK on what ranks work, the last k `work_ranks`; NaN = unknown.
        work_ranks: those of the window before.
        odds: rank -> odds after the window before.
        longest: rank -> its latest step of the window before, of ranks that were late there; ns.
        is_empty: nothing is known of who was late in any window.
        always: the rank that was the latest in all windows, -1 = ranks took turns, or none was late.
        lateness: [m] how late it was in each of them; ns a step.
        inspected: the newest inspection that counted, with its window; {} = none.
    """

    windows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Floats = field(default_factory=lambda: np.zeros((0, WORK + 1)))
    work_ranks: tuple[int, ...] = ()
    odds: Mapping[int, Odds] = field(default_factory=dict)
    longest: Mapping[int, float] = field(default_factory=dict)
    is_empty: bool = True
    always: int = -1
    lateness: Floats = field(default_factory=lambda: np.zeros(0))
    inspected: Mapping[str, Any] = field(default_factory=dict)

    def before(self, window: int) -> Floats:
        """Return the values of the windows before this one."""
        return self.values[: np.searchsorted(self.windows, window)]


def unexplained_windows(entries: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the windows whose lateness is known and is nobody's, ascending. `entries`: window -> `kept` of it.

    A named rank was late since its odds began to rise, and in a part of the window after the last that names it.
    """
    known = sorted(at for at, entry in entries.items() if entry.get("step"))
    late = set[int]()
    for at in known:
        if (since := entries[at]["since"]) >= 0:
            late.update(range(since, at + 2))
    return [at for at in known if at not in late]


def load_lateness(known: Mapping[int, Mapping[str, Any]], config: StragglerConfig) -> LatenessHistory:
    """Return the lateness of earlier windows. `known`: window -> `kept` of it; {} = unknown."""
    entries = {at: known[at] for at in sorted(known) if known[at].get("step")}
    if not entries:
        return LatenessHistory()
    last = entries[max(entries)]
    windows = unexplained_windows(entries)[-config.history_windows :]
    # The first window of one step has no step before, so nobody is late in it.
    compared = [*entries.values()][int(config.window_steps == 1) :]
    latest = {entry["latest"] for entry in compared}
    always = latest.pop() if len(latest) == 1 else -1
    return LatenessHistory(
        np.array(windows, np.int64),
        np.array([_values(entries[at], last["work"]) for at in windows]).reshape(-1, WORK + 1 + len(last["work"])),
        tuple(map(int, last["work"])),
        {
            rank: Odds(tuple(values), since, float(cost), bool(named))
            for (values, since, cost, named), runs in last["odds"]
            for rank in ranks_of(runs)
        },
        {int(rank): float(late) for rank, late in last["longest"].items()},
        not compared,
        always,
        np.array([entry["late"] for entry in compared] if always >= 0 else [], float),
        last["inspected"],
    )


def _values(entry: Mapping[str, Any], ranks: Iterable[str]) -> list[float]:
    work = (entry["work"].get(rank, np.nan) for rank in ranks)
    return [float(value) for value in (entry["late"], entry["step"], entry["busy"], *work)]


class WindowLateness:
    """Holds the lateness of R ranks in one window; ns a step.

    `longest_before`: rank -> its latest step of the window before, which shows that such steps are not odd.

    Attributes:
        lateness: [R] what a rank lost; its latest steps, one in ten, count no more than the next.
        often: [R] the same without what the window before shows.
        longest: [R] by how much a rank was late in its latest step; ns.
        step_ns: the mean step.
        work_ns: [R] how long a rank works in it and does not wait, on average; NaN = unknown.
        busy_ns: the least of it over ranks, without what each lost.
    """

    def __init__(self, data: WindowData, attribution: Attribution, longest_before: Mapping[int, float]) -> None:
        steps = np.maximum(1, attribution.steps)
        latest, next_to = _latest_steps(attribution.behind_ns)
        self.longest = latest.max(axis=1, initial=0.0)
        is_compared = attribution.steps >= COMPARED * attribution.steps.max(initial=0)
        before = np.array([longest_before.get(rank, 0.0) for rank in data.ranks.tolist()])
        lost_ns = np.where(is_compared, attribution.lost_ns, 0.0)
        self.often = _without(lost_ns, latest, next_to) / steps
        self.lateness = _without(lost_ns, latest, np.maximum(next_to, before)) / steps
        length = step_length(data)
        self.step_ns = float(np.nanmean(length)) if np.isfinite(length).any() else 0.0
        self.work_ns = _work_ns(data)
        busy = (self.work_ns - attribution.lost_ns / steps)[np.isfinite(self.work_ns)]
        self.busy_ns = float(np.maximum(busy, 0.0).min()) if len(busy) else 0.0


def _without(lost_ns: Floats, latest: Floats, most: Floats) -> Floats:
    """Return [R] ns that ranks lost, with none of the latest steps later than `most`."""
    return np.asarray(np.maximum(lost_ns - np.maximum(latest - most[:, None], 0.0).sum(axis=1), 0.0))


def _work_ns(data: WindowData) -> Floats:
    """Return [R] how long each rank worked in a step, itself, on average: all but exposed communication; ns."""
    work = data.budget["gpu_duration_ns"] - data.budget["comm_exposed_ns"]
    known = np.isfinite(work)
    counts = known.sum(1)
    return np.where(counts > 0, np.where(known, work, 0.0).sum(1) / np.maximum(1, counts), np.nan)


def _latest_steps(behind_ns: Floats) -> tuple[Floats, Floats]:
    """Return [R, n] by how much each rank was late in its latest steps, one in ten, and [R] in the next; at least 0."""
    late = np.where(np.isfinite(behind_ns), np.maximum(behind_ns, 0.0), 0.0)
    count = min(late.shape[1], max(1, late.shape[1] // ODD_STEPS))
    most = np.pad(np.sort(late, axis=1)[:, ::-1], ((0, 0), (0, 1)))
    return most[:, :count], most[:, count]
