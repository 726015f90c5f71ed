"""LatenessHistory: how late ranks were in a job's earlier windows, of what was kept of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import Floats, Ints
from drumline.streams.stragglers.rank_values import ranks_of

#: Values of an earlier window, ns a step: lateness of its latest rank, the step, and busy time (see lateness_test.py).
LATE, STEP, BUSY = range(3)


@dataclass(frozen=True, slots=True)
class Odds:
    """Holds the odds that a rank is late for a reason: one value for each power of `likelihood_ratios`.

    Attributes:
        values: (odds, odds).
        since: the first window of those that they rest on.
        cost: the most that the rank cost in one of them; ns a step.
        is_named: they are as large as a name needs.
    """

    values: tuple[float, ...]
    since: int
    cost: float = 0.0
    is_named: bool = False


@dataclass(frozen=True)
class LatenessHistory:
    """Holds how late ranks were in the windows before.

    Attributes:
        windows: [n] numbers of the last ones that no reason explains, rising.
        values: [n, 3] LATE, STEP and BUSY of each.
        odds: rank -> odds after the window before.
        longest: rank -> its latest step of the window before, of ranks that were late there; ns.
        is_empty: nothing is known of any window.
        always: the rank that was the latest in all windows, -1 = ranks took turns, or none was late.
        lateness: [m] how late it was in each of them; ns a step.
    """

    windows: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    values: Floats = field(default_factory=lambda: np.zeros((0, 3)))
    odds: Mapping[int, Odds] = field(default_factory=dict)
    longest: Mapping[int, float] = field(default_factory=dict)
    is_empty: bool = True
    always: int = -1
    lateness: Floats = field(default_factory=lambda: np.zeros(0))

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
    latest = {entry["latest"] for entry in entries.values()}
    always = latest.pop() if len(latest) == 1 else -1
    return LatenessHistory(
        np.array(windows, np.int64),
        np.array([[entries[at][name] for name in ("late", "step", "busy")] for at in windows], float).reshape(-1, 3),
        {
            rank: Odds(tuple(values), since, float(cost), bool(named))
            for (values, since, cost, named), runs in last["odds"]
            for rank in ranks_of(runs)
        },
        {int(rank): float(late) for rank, late in last["longest"].items()},
        False,
        always,
        np.array([entry["late"] for entry in entries.values()] if always >= 0 else [], float),
    )
