"""Consistency: in a job with jitter now one rank is the latest, now another. A rank is named only beyond that.

The null: how late the latest rank of a healthy window is varies by chance, as it did in the job's earlier windows. A
rank is named where it is later than in one window of a thousand by chance (derivation: docs/design/stragglers.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from drumline.streams.core.chance import spread, spread_of_sizes, tail_limit, times_spread
from drumline.streams.core.thresholds import OK, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.cause import NO_CAUSE
from drumline.streams.stragglers.analysis.host_cause import NO_CPU
from drumline.streams.stragglers.analysis.lateness_history import LatenessHistory
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
#: The first of two windows in a row may come so many times as often by chance: a fault seldom begins with a window.
WEAK = 10
#: A rank is late steadily if not even this part of its steps is on time by how they vary: drift and pauses are not.
UNSTEADY = 0.05
#: What explains a late rank that is not named: one step, turns that ranks take, or more than those, but once.
ONE_STEP, CHANCE, ONCE = "one_step", "chance", "one_window"


class _Norm:
    """Holds what the latest rank of earlier windows lost, and how much more is no chance; ns a step."""

    def __init__(self, windows: Sequence[tuple[float, float]], config: StragglerConfig) -> None:
        self._largest = [largest for largest, _ in windows]
        self._recent, self._config = self._largest[-config.baseline_windows :], config
        self.step_spreads = [steps for _, steps in windows]
        self.is_known = len(windows) >= config.baseline_windows_min
        #: Lost by the latest rank of any recent window, at most.
        self.most = max(self._recent, default=0.0)

    @cached_property
    def limit(self) -> float:
        """Return what the latest rank of a healthy window exceeds with the chance of the configuration."""
        return self._limit(self._config.chance)

    @cached_property
    def weak_limit(self) -> float:
        """Return the limit for the first of two windows in a row."""
        return self._limit(WEAK * self._config.chance)

    @cached_property
    def sure_limit(self) -> float:
        """Return the limit for one window that is as unlikely as two in a row."""
        return max(self.limit, self._recent_limit(self._config.chance**2))

    def _limit(self, chance: float) -> float:
        limit = self._recent_limit(chance)
        if len(self._largest) < self._config.baseline_windows:
            return limit
        return max(limit, tail_limit(self._largest, chance))

    def _recent_limit(self, chance: float) -> float:
        size, degrees = spread_of_sizes(self._recent)
        return times_spread(chance, degrees) * size


class ConsistencyTest:
    """Compares the late ranks of one window with the turns that ranks take.

    Attributes:
        lateness: [R] ns a step, of what a rank lost; its latest step counts no more than its second.
    """

    def __init__(
        self, data: WindowData, attribution: Attribution, history: LatenessHistory, config: StragglerConfig
    ) -> None:
        self._data, self._attribution, self._history, self._config = data, attribution, history, config
        self._norms: dict[str, _Norm] = {}
        self._index = {rank: index for index, rank in enumerate(data.ranks.tolist())}
        length = step_length(data)
        self._step_ns = float(np.nanmedian(length)) if np.isfinite(length).any() else 0.0
        lost, steps = attribution.lost_ns, np.maximum(1, attribution.steps)
        self._longest, second, third = _latest_steps(attribution.behind_ns)
        known = second.copy()
        for rank, before in history.longest.items():
            if rank in self._index:
                known[self._index[rank]] = max(known[self._index[rank]], before)
        self.lateness = np.maximum(lost - np.maximum(self._longest - known, 0.0), 0.0) / steps
        #: [R] ns that a rank lost without its two latest steps, each as late as the third instead.
        self._often = lost - self._longest - second + 2 * third
        #: [R] ns a step that a rank lost, its latest step too.
        self._mean = lost / steps

    def tested(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a late rank; if turns may explain it, without a name, but with the evidence."""
        if row.severity <= OK or row.rank not in self._index:
            return row
        index, norm = self._index[row.rank], self._norm(row.rank)
        late, least = float(self.lateness[index]), self._config.suspect * self._step_ns
        limit = max(norm.limit if norm.is_known else self._limit_by_steps(index, norm, self._config.chance), least)
        if late < least:
            how = ONE_STEP
        elif _is_measured(row.cause.detail, late > norm.most) or self._is_steady(row.rank, norm):
            return row
        elif late < limit:
            how = ONCE if norm.is_known and late >= norm.weak_limit else CHANCE
        elif self._in_row(row.rank) < self._needed(norm) and not self._is_sure(index, late, limit, norm):
            how = ONCE
        else:
            return row
        evidence = {"explained_by": how, "late_ns": round(late), "limit_ns": round(limit)}
        return replace(row, severity=OK, cause=NO_CAUSE, evidence=evidence)

    def _is_sure(self, index: int, late: float, limit: float, norm: _Norm) -> bool:
        """Return whether a rank is named in its first window: by three steps, late by far or almost without jitter."""
        least = self._config.suspect * self._step_ns * self._attribution.steps[index]
        steady = times_spread(UNSTEADY, self._degrees(index)) * spread(self._attribution.behind_ns[index])
        far = self._config.sure_ratio**2
        by_far = max(min(norm.sure_limit, far * norm.most), steady) if norm.is_known else far * limit
        if limit <= self._config.warning * self._step_ns:
            clear = limit if norm.is_known else self._limit_by_steps(index, norm, self._config.chance**2)
            by_far = min(by_far, clear)
        return bool(late >= max(limit, by_far) and self._often[index] >= least)

    def _is_steady(self, rank: int, norm: _Norm) -> bool:
        """Return whether a rank is the latest for the third window in a row, or a later one, and not by chance.

        By a multiple of any window before; for want of those, by more than its present run of windows varies by.
        """
        needed = self._config.baseline_windows_min
        streak = [*self._history.streak, float(self._mean[self._index[rank]])][-self._config.baseline_windows :]
        if not rank == self._latest_rank() == self._history.latest or len(streak) < needed:
            return False
        if norm.is_known:
            return min(streak[-needed:]) >= self._config.sure_ratio * norm.most
        limit = times_spread(self._config.chance, len(streak) - 1) * float(np.std(streak, ddof=1))
        return min(streak) >= self._config.suspect * self._step_ns and float(np.mean(streak)) >= limit

    def _latest_rank(self) -> int:
        return int(self._data.ranks[self._mean.argmax()])

    def _norm(self, rank: int) -> _Norm:
        kind = self._history.kind(rank)
        if kind not in self._norms:
            self._norms[kind] = _Norm(self._history.of(kind), self._config)
        return self._norms[kind]

    def _in_row(self, rank: int) -> int:
        return self._history.in_row.get(rank, 0) + 1

    def _needed(self, norm: _Norm) -> int:
        """Return the windows in a row that name a rank. Hosts that launch ahead keep their order for two."""
        return 2 if norm.is_known else self._config.baseline_windows_min

    def _limit_by_steps(self, index: int, norm: _Norm, chance: float) -> float:
        """Return how late a rank may be by chance, for want of windows to compare; ns a step.

        It varies as the rank's lateness does from step to step, in which what all ranks vary by together cancels.
        """
        spreads = [spread(self._attribution.behind_ns[index]), *norm.step_spreads]
        return times_spread(chance, self._degrees(index)) * max(spreads)

    def _degrees(self, index: int) -> int:
        return max(1, int(self._attribution.steps[index]) - 1)

    def kept(self, rows: Sequence[RankVerdict]) -> dict[str, Any]:
        """Return what later windows know of this one, as JSON. `rows`: as tested."""
        late = [row for row in rows if row.rank in self._index and (row.names_rank or "explained_by" in row.evidence)]
        late = sorted(late, key=lambda row: -row.lost_ns)[:KEPT_RANKS]
        least = self._config.baseline_windows_min  # a named rank goes on to be named
        in_row = {
            str(row.rank): max(self._in_row(row.rank), least * row.names_rank)
            for row in late
            if row.names_rank or row.evidence["explained_by"] == ONCE
        }
        longest = {str(row.rank): round(float(self._longest[self._index[row.rank]])) for row in late}
        latest = self._latest_rank() if len(self._mean) else -1
        varies = spread(self._attribution.behind_ns[self._index[latest]]) if len(self._mean) else 0.0
        return {
            "largest": round(float(self._mean.max(initial=0.0))),
            "latest": latest if any(row.rank == latest for row in late) else -1,
            "spread": round(varies),
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


def _is_measured(detail: str, is_latest: bool) -> bool:
    """Return whether a detail was measured of the rank itself. `is_latest`: later than in any window before."""
    return detail in MEASURED or (is_latest and detail in SAMPLED)
