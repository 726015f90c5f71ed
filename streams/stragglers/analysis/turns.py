"""Turns: in a job with jitter now one rank is the latest, now another. A rank is named only beyond that.

The null: how late the latest rank of a healthy window is varies by chance, as it did in the job's earlier windows. A
rank is named where it is later than in one window of a thousand by chance (derivation: docs/design/stragglers.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drumline.streams.core.chance import spread, spread_of_sizes, times_spread
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.cause import NO_CAUSE
from drumline.streams.stragglers.analysis.host_cause import NO_CPU
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData, step_length

#: Details that were measured in the rank's own steps, or on its own GPU: not chance, however much the job's steps vary.
MEASURED = frozenset(
    {
        "garbage_collection", "checkpoint", "data_loader", "synchronisation",
        "pageable", "more_work", "shared_gpu", "throttled",
    }
)  # fmt: skip
#: Details from a sample a second of the process, which may be of the window before: with one of them a rank needs to be
#: later than in all windows before only.
SAMPLED = frozenset({*NO_CPU, "python_lock", "page_faults", "disk"})
#: Ranks of which the next window knows their latest step, those that lost most.
KEPT_RANKS = 64
#: How a row that names nobody was judged: late in one step only, as late as ranks are by turns, or later, but once.
ONE_STEP, TURN, ONCE = "one_step", "turn", "once"


@dataclass(frozen=True)
class TurnHistory:
    """Holds how late ranks were in the windows before; ns a step.

    Attributes:
        windows: of the last ones that named no rank, what the latest rank lost, and the spread of steps; oldest first.
        before: the same of the window before, if it named no rank: it counts for ranks that were not late in it.
        in_row: rank -> windows in a row, to the one before, in which it was too late for a turn, named or not.
        longest: rank -> its latest step of the window before, of ranks that were late there.
    """

    windows: Sequence[tuple[float, float]] = ()
    before: tuple[float, float] | None = None
    in_row: Mapping[int, int] = field(default_factory=dict)
    longest: Mapping[int, float] = field(default_factory=dict)

    def of(self, rank: int) -> Sequence[tuple[float, float]]:
        """Return the windows that a rank is compared with."""
        return self.windows if self.before is None or rank in self.longest else [*self.windows, self.before]


def load_turns(entries: Sequence[Mapping[str, Any]], config: StragglerConfig) -> TurnHistory:
    """Return the lateness of earlier windows. `entries`: `kept` of all of them, oldest first; {} = unknown.

    Windows beside one that names a rank, in which it was late too, are a fault's begin and end, and do not count.
    """
    none = frozenset[str]()
    named = [none, *(frozenset(map(str, entry["named"])) if entry else none for entry in entries), none]
    windows = [
        _values(entry)
        for at, entry in enumerate(entries[:-1], 1)
        if entry and not named[at] and not (named[at - 1] | named[at + 1]) & entry["longest"].keys()
    ][-config.baseline_windows :]
    last = entries[-1] if entries else {}
    if not last:
        return TurnHistory(windows)
    return TurnHistory(
        windows,
        None if last["named"] else _values(last),
        {int(rank): int(count) for rank, count in last["in_row"].items()},
        {int(rank): float(late) for rank, late in last["longest"].items()},
    )


def _values(entry: Mapping[str, Any]) -> tuple[float, float]:
    return float(entry["largest"]), float(entry["spread"])


class TurnTest:
    """Compares the late ranks of one window with the turns that ranks take.

    Attributes:
        lateness: [R] ns a step, of what a rank lost; its latest step counts no more than its second.
    """

    def __init__(
        self, data: WindowData, attribution: Attribution, history: TurnHistory, config: StragglerConfig
    ) -> None:
        self._data, self._attribution, self._history, self._config = data, attribution, history, config
        self._index = {rank: index for index, rank in enumerate(data.ranks.tolist())}
        length = step_length(data)
        self._step_ns = float(np.nanmedian(length)) if np.isfinite(length).any() else 0.0
        self._spread = spread(length)
        lost, steps = attribution.lost_ns, np.maximum(1, attribution.steps)
        self._longest, second, third = _latest_steps(attribution.behind_ns)
        known = second.copy()
        for rank, before in history.longest.items():
            if rank in self._index:
                known[self._index[rank]] = max(known[self._index[rank]], before)
        self.lateness = np.maximum(lost - np.maximum(self._longest - known, 0.0), 0.0) / steps
        #: [R] ns that a rank lost without its two latest steps, each as late as the third instead.
        self._often = lost - self._longest - second + 2 * third
        self._most = float((lost / steps).max(initial=0.0))

    def judged(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a late rank; if turns may explain it, without a name, but with the evidence."""
        if row.severity <= OK or row.rank not in self._index:
            return row
        index = self._index[row.rank]
        late, least = float(self.lateness[index]), self._config.suspect * self._step_ns
        limit = max(self.limit(row.rank), least)
        if late < least:
            how = ONE_STEP
        elif row.cause.detail in MEASURED or (row.cause.detail in SAMPLED and late > self._latest(row.rank)):
            return row
        elif late < limit:
            how = TURN
        elif self._in_row(row.rank) < self._needed(row.rank) and not self._is_sure(index, late, limit, least):
            how = ONCE
        else:
            return row
        evidence = {"judged": how, "late_ns": round(late), "limit_ns": round(limit)}
        return replace(row, severity=OK, cause=NO_CAUSE, evidence=evidence)

    def _is_sure(self, index: int, late: float, limit: float, least: float) -> bool:
        """Return whether a rank is named in its first window: late by far, or almost without jitter, in three steps."""
        often = self._often[index] >= least * self._attribution.steps[index]
        has_history = self._has_history(int(self._data.ranks[index]))
        by_far = self._config.sure_ratio if has_history else self._config.sure_ratio**2
        return bool(often and (limit <= self._config.warning * self._step_ns or late >= by_far * limit))

    def _in_row(self, rank: int) -> int:
        return self._history.in_row.get(rank, 0) + 1

    def _needed(self, rank: int) -> int:
        """Return the windows in a row that name a rank. Hosts that launch ahead keep their order for two."""
        return 2 if self._has_history(rank) else self._config.baseline_windows_min

    def _has_history(self, rank: int) -> bool:
        return len(self._history.of(rank)) >= self._config.baseline_windows_min

    def limit(self, rank: int) -> float:
        """Return how late a rank may be by chance; ns a step. Before there is a history, as steps of a window vary."""
        windows = self._history.of(rank)
        if self._has_history(rank):
            size, degrees = spread_of_sizes([largest for largest, _ in windows])
        else:
            index = self._index[rank]
            spreads = [self._spread, spread(self._attribution.behind_ns[index]), *(steps for _, steps in windows)]
            size, degrees = max(spreads), max(1, int(self._attribution.steps[index]) - 1)
        return times_spread(self._config.chance, degrees) * size

    def _latest(self, rank: int) -> float:
        """Return what the latest rank lost in the windows that a rank is compared with, at most; ns a step."""
        return max((largest for largest, _ in self._history.of(rank)), default=0.0)

    def kept(self, rows: Sequence[RankVerdict]) -> dict[str, Any]:
        """Return what later windows know of this one, as JSON. `rows`: as judged."""
        late = [row for row in rows if row.rank in self._index and (row.names_rank or "judged" in row.evidence)]
        late = sorted(late, key=lambda row: -row.lost_ns)[:KEPT_RANKS]
        least = self._config.baseline_windows_min  # a named rank goes on to be named
        in_row = {
            str(row.rank): max(self._in_row(row.rank), least * row.names_rank)
            for row in late
            if row.names_rank or row.evidence["judged"] == ONCE
        }
        longest = {str(row.rank): round(float(self._longest[self._index[row.rank]])) for row in late}
        return {
            "largest": round(self._most),
            "spread": round(self._spread),
            "in_row": in_row,
            "longest": longest,
            "named": [row.rank for row in late if row.names_rank],
        }


def _latest_steps(behind_ns: Floats) -> tuple[Floats, Floats, Floats]:
    """Return by how much each rank was late in its latest step, its second and its third; at least 0."""
    latest = np.zeros((len(behind_ns), 3))
    known = np.where(np.isfinite(behind_ns), np.maximum(behind_ns, 0.0), 0.0)
    most = np.sort(known, axis=1)[:, ::-1][:, :3]
    latest[:, : most.shape[1]] = most
    return latest[:, 0], latest[:, 1], latest[:, 2]
