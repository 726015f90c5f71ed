"""The test that names ranks: hosts and GPUs jitter, so a late rank is named once it is unlikely to be late by chance.

Each window is evidence, for a rank or against it, and adds up over windows: the odds of Shiryaev and Roberts. A named
rank costs the job time: what counts is lateness by which steps are longer than before (docs/design/stragglers.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.infra.guidance.causes import HOST_STALL, details_known_from
from drumline.infra.guidance.entry import SAMPLES, STEPS
from drumline.streams.core.chance import RATIOS, beyond, chance_of_sizes, common_sizes, likelihood_ratios, spread
from drumline.streams.core.thresholds import OK, WARNING, StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.cause import DETAILS, NO_CAUSE, WAITING, Cause
from drumline.streams.stragglers.analysis.lateness_history import (
    LATE,
    STEP,
    WORK,
    WORK_RANKS,
    LatenessHistory,
    Odds,
    WindowLateness,
)
from drumline.streams.stragglers.analysis.verdict_rows import RankVerdict
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData
from drumline.streams.stragglers.inspection.evidence import next_inspection, odds_ratio, stated
from drumline.streams.stragglers.inspection.sampled_stacks import Inspection
from drumline.streams.stragglers.rank_values import by_value

#: Details that were measured in the rank's own steps, or on its own GPU: not chance, however much the job's steps vary.
MEASURED = details_known_from(STEPS)
#: Details from a sample a second of the process, which may be of the window before: odds are enough that are so many
#: times less.
SAMPLED = details_known_from(SAMPLES)
SAMPLED_ODDS = 50.0
#: Windows, or steps, vary little if by less than this part of what a suspect loses.
LITTLE = 0.5
#: A rank that costs less than this part of what it did is late no more.
ENDED = 0.1
#: Odds from which a rank is suspect: it is compared with the windows before its odds began to rise.
SUSPECTED = 3.0
#: A rank is suspect before it is named for what all ranks do: each waits for its GPU, and differs in it by chance.
SYNCHRONISATION = DETAILS["idle_ns"][WAITING]
#: Odds are at most so many times those that name a rank: they fall within some windows after a fault.
MOST = 3.0
#: A rank is late steadily if not even this part of its steps is on time by how they vary: drift and pauses are not.
UNSTEADY = 0.05
#: Windows of fewer steps do not show how steps vary, and no chance in them is smaller: three such windows name a rank.
FEW, LEAST_OF_FEW = 3, 1e-4
#: Ranks of which the next window knows their latest step, those that lost most; groups of ranks with the same odds.
KEPT_RANKS, KEPT_GROUPS = 64, 512
#: In such steps odds are kept.
STEP_OF_ODDS = 1.02
#: Evidence of a suspect rank: the cause that it would be named for. The agent reads it (producers/stacks/verdicts.py).
SUSPECTED_OF = "suspected_of"
#: Why a late rank is not named: it was one step; steps did not grow by it; or it may be chance.
ONE_STEP, NO_GROWTH, CHANCE = "one_step", "no_growth", "chance"


class LatenessTest:
    """Holds the evidence of one window, and the odds after it. With step times in ns, of R ranks.

    `link_ns`: what a slow link took of a step.

    Attributes:
        lateness: [R] see `WindowLateness`.
        cost: [R] the part of it by which steps grew.
    """

    def __init__(
        self,
        data: WindowData,
        attribution: Attribution,
        history: LatenessHistory,
        config: StragglerConfig,
        inspections: Mapping[int, Inspection] = MappingProxyType({}),
        link_ns: float = 0.0,
    ) -> None:
        self._data, self._attribution, self._history, self._config = data, attribution, history, config
        self._of_window = WindowLateness(data, attribution, history.longest)
        self._step_ns, self.lateness = self._of_window.step_ns, self._of_window.lateness
        self._without_link_ns = max(self._step_ns - link_ns, 0.0)  # what a link takes is no rank's
        # So few steps do not show how they vary: a rank is late in all of them, and before, or they are odd.
        self._is_short, self._is_repeated = config.window_steps < FEW, self.lateness >= LITTLE * self._of_window.longest
        self._index = {rank: index for index, rank in enumerate(data.ranks.tolist())}
        self._window = data.number
        self._least_ns, self._needed = config.suspect * self._step_ns, 1.0 / config.chance
        is_late = self.lateness.max(initial=0.0) > self._least_ns
        self._latest = int(data.ranks[self.lateness.argmax()]) if is_late else -1
        self._always = self._latest if history.is_empty or history.always == self._latest else -1
        work = [self._of_window.work_ns[self._index[r]] if r in self._index else np.nan for r in history.work_ranks]
        self._values = np.array([0.0, self._without_link_ns, self._of_window.busy_ns, *work])
        self._limit = self._limits(history.values)
        self.cost = np.minimum(self.lateness, self._limit)
        # What a stall cost is no measure of what comes after it.
        self._before_odds = {
            rank: odds
            for rank, odds in history.odds.items()
            if odds.is_named
            or rank not in self._index
            or self._cost(rank) < self._least_ns
            or not self._is_over(rank, odds)
        }
        runs = [odds.since for odds in self._before_odds.values() if _is_suspect(odds)]
        self._run_begin = min(runs, default=self._window)
        has_odds = np.isin(data.ranks, list(self._before_odds))
        self._limit[has_odds] = self._limits(self._before(self._run_begin))[has_odds]
        if self._always >= 0:  # its steps may never have been shorter
            self._limit[self._index[self._always]] = np.inf
        self.cost = np.minimum(self.lateness, self._limit)
        self._inspected = dict(history.inspected)
        number, inspection = next_inspection(inspections, self._inspected.get("window", -1), self._window) or (-1, None)
        if inspection is not None and inspection.rank in self._index:
            ratio = odds_ratio(inspection, self._cost(inspection.rank) / max(self._step_ns, 1.0))
            self._inspected = {**asdict(inspection), "window": number, "ratio": ratio}
        self._is_inspected = self._inspected != history.inspected
        self._odds = self._odds_after() if len(data.ranks) else {}

    def tested(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a late rank; if chance may explain it, without a name, but with the evidence."""
        if row.severity <= OK or row.rank not in self._index:
            return row
        index, least = self._index[row.rank], self._least_ns
        detail, odds = row.cause.detail, self._odds.get(row.rank)
        value = 0.0 if odds is None else odds.mean
        needed = self._needed / (SAMPLED_ODDS if detail in SAMPLED else 1.0)
        if detail == SYNCHRONISATION:
            needed = SUSPECTED
        if self.lateness[index] < least:
            how = ONE_STEP
        elif self.cost[index] < least:
            how = NO_GROWTH
        elif detail in MEASURED or (value >= needed and not self._has_ended(row.rank)):
            return self._shown(self._limited(row))
        else:
            how = CHANCE
        evidence = {"explained_by": how, "late_ns": round(float(self.lateness[index])), "odds": round(value)}
        if how == CHANCE and odds is not None and _is_suspect(odds):
            peers = {name: row.evidence[name] for name in ("peers", "pipeline") if name in row.evidence}
            evidence |= {SUSPECTED_OF: row.cause.cause, **peers, **self._inspection_of(row.rank)}
        return replace(row, severity=OK, cause=NO_CAUSE, evidence={**evidence, "odds_needed": round(needed)})

    def _limited(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a rank that is named, with no more lost than steps grew, which is known as closely as they
        vary: what others wait for it beyond that is as usual, and another rank's turn without it.
        """
        index, values = self._index[row.rank], self._before(self._run_begin)
        most = (self._limit[index] + _variation(values)) * int(self._attribution.steps[index])
        if most >= row.lost_ns:
            return row
        share = row.share * most / row.lost_ns
        severity = min(row.severity, max(WARNING, self._config.severity(share)))  # its odds name it, not this window
        return replace(row, lost_ns=round(most), share=share, severity=severity)

    def _shown(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a rank that is named, with what its stacks have shown."""
        seen = self._inspection_of(row.rank)
        if not seen:
            return row
        cause = row.cause
        if seen["inspection"]["at"] and cause.cause != HOST_STALL:
            cause = Cause(HOST_STALL, "", "medium", cause.excess_ns, cause.ratios)
        return replace(row, cause=cause, evidence={**row.evidence, **seen})

    def _inspection_of(self, rank: int) -> dict[str, Any]:
        """Return what the evidence states of a rank's inspection, as long as the odds rest on windows before it."""
        seen, odds = self._inspected, self._odds.get(rank)
        if seen.get("rank") != rank or odds is None or odds.since > seen["window"]:
            return {}
        return {"inspection": stated(seen)}

    def is_suspect(self) -> bool:
        """Return whether any rank is suspect, named or not."""
        return any(map(_is_suspect, self._odds.values()))

    def _has_ended(self, rank: int) -> bool:
        before = self._before_odds.get(rank)
        return before is not None and self._is_over(rank, before)

    def _is_over(self, rank: int, odds: Odds) -> bool:
        """Return whether a fault has ended: a named rank costs next to nothing of before, a suspect is hardly late.

        A suspect is measured by its lateness, as steps that are short for another reason hide what it costs.
        """
        measured = self.cost if odds.is_named else self.lateness
        return float(measured[self._index[rank]]) < ENDED * odds.cost

    def _cost(self, rank: int) -> float:
        return float(self.cost[self._index[rank]])

    def _is_known(self, values: Floats) -> bool:
        return len(values) >= self._config.baseline_windows_min

    def _limits(self, values: Floats) -> Floats:
        """Return [R] by how much steps are longer than in earlier windows, of these values, for each rank's lateness.

        Without a later rank, steps were shorter by how much later that is.
        """
        later = self.lateness.max(initial=0.0) - self.lateness
        return np.asarray(np.maximum(self._growth(values) - later, 0.0))

    def _growth(self, values: Floats, of: Floats | None = None) -> Floats:
        """Return by how much the steps of a window are longer than before, or 0; without a past there is no limit.

        What all ranks work longer than before is the job's, and no rank's. `of`: values of the windows,
        by default of this one.
        """
        now = self._values if of is None else of
        if not self._is_known(values):
            return np.full(now.shape[:-1], np.inf)
        last = values[-self._config.baseline_windows :]
        before = np.array([_median(column) for column in last.T])
        longer = now[..., WORK:] / np.maximum(before[WORK:], 1.0)
        least = np.where(np.isfinite(longer), longer, np.inf).min(axis=-1, initial=np.inf)
        more_work = np.where(np.isfinite(least), np.maximum(1.0, least), 1.0)
        return np.asarray(now[..., STEP] - more_work * before[STEP])

    def _odds_after(self) -> dict[int, Odds]:
        """Return rank -> odds after this window; of ranks that have some."""
        before = self._before_odds
        begins = self.cost >= self._least_ns
        has = begins | np.isin(self._data.ranks, list(before))
        index = np.flatnonzero(has)
        ranks = self._data.ranks[index].tolist()
        ratios = likelihood_ratios(*self._chances(index, ranks))
        none = (0.0,) * RATIOS
        old = np.array([before[rank].values if rank in before else none for rank in ranks]).reshape(-1, RATIOS).T
        values = (old + begins[index]) * ratios
        if self._is_inspected:
            values[:, np.array(ranks) == self._inspected["rank"]] *= self._inspected["ratio"]
        values = np.minimum(values, MOST * self._needed)
        if self._always in ranks and len(self._history.lateness) + 1 >= self._config.baseline_windows_min:
            at = ranks.index(self._always)
            values[:, at] = np.maximum(values[:, at], min(1.0 / self._chance_of_row(), MOST * self._needed))
        out = {}
        for rank, rank_odds in zip(ranks, values.T.tolist(), strict=True):
            mean, last = float(np.mean(rank_odds)), before.get(rank)
            if mean > 1.0 and not (last is not None and last.is_named and mean < self._needed):
                since = self._window if last is None else last.since
                cost = max(self._cost(rank), 0.0 if last is None else last.cost)
                out[rank] = Odds(tuple(rank_odds), since, cost, mean >= self._needed)
        return out

    def _chances(self, index: NDArray[np.intp], ranks: Sequence[int]) -> tuple[Floats, Floats]:
        """Return how likely each rank costs the job so much by chance, and how many windows may have all in common.

        Where it is late in a few steps of the window, `chance` at least.
        """
        chances, groups = np.ones(len(index)), dict[int, list[int]]()
        together = np.full(len(index), float(self._config.alike_windows))
        for at, rank in enumerate(ranks):
            if self.cost[index[at]] >= self._least_ns and not self._has_ended(rank):
                groups.setdefault(self._begin(rank), []).append(at)
        for since, members in groups.items():
            values, of_members = self._before(since), index[members]
            few = np.zeros((0, WORK + 1)) if self._is_known(values) else self._history.before(since)
            by_steps, vary_little = np.array([self._chance_by_steps(int(at), few) for at in of_members]).T
            is_steady = self._is_repeated[of_members] if self._is_short else by_steps <= UNSTEADY
            if self._is_known(values):
                growth = self._growth(values, values)  # steps vary as much to both sides
                sizes = np.minimum(values[:, LATE], np.abs(growth)) * np.where(growth > 0.0, 1.0, -1.0)
                least = self._config.least_jitter * self._step_ns
                chance = chance_of_sizes(self.cost[of_members], sizes, _variation(values), least)
                is_uneven = common_sizes(values[:, LATE])[-1:].sum() >= LITTLE * self._least_ns
                if not (is_uneven or self._is_short):  # steps count
                    chance = np.where(is_steady, np.minimum(chance, by_steps), chance)
                    together[members] = np.where(is_steady, 1.0, together[members])
            else:
                chance, is_steady = by_steps, is_steady & (vary_little > 0.0)
                together[members] = np.where(is_steady, together[members], float(self._config.baseline_windows_min))
            floor = LEAST_OF_FEW if self._is_short else 0.0
            chances[members] = np.maximum(chance, np.where(is_steady, floor, self._config.chance))
        return chances, together

    def _begin(self, rank: int) -> int:
        """Return the window before which others are compared with this rank's present one."""
        return -1 if rank == self._always else self._run_begin

    def _before(self, window: int) -> Floats:
        """Return the values of the windows before one, which is compared with them; where those are few, of all."""
        values = self._history.before(window)
        return values if self._is_known(values) or window < 0 else self._history.values

    def _chance_by_steps(self, index: int, few: Floats) -> tuple[float, bool]:
        """Return how likely a rank is so late by chance, for want of windows to compare; and whether steps hardly vary.

        Its lateness varies as it does from step to step, in which what all ranks vary by together cancels, and by
        `few`: the values of windows before, where they are few.
        """
        varies = max(spread(self._attribution.behind_ns[index]), self._config.least_jitter * self._step_ns)
        varies_little = varies < LITTLE * self._least_ns
        varies = max(varies, few[:, LATE].max(initial=0.0))
        return beyond(
            self._of_window.often[index] / varies, max(1, int(self._attribution.steps[index]) - 1)
        ), varies_little

    def _chance_of_row(self) -> float:
        """Return how likely a rank is the latest in all windows by chance: its lateness varies as it does by window."""
        late = np.append(self._history.lateness, self.lateness[self._index[self._always]])
        varies = max(float(np.std(late, ddof=1)), self._config.least_jitter * self._step_ns)
        return beyond(float(late.mean()) / varies, len(late) - 1)

    def _work_kept(self) -> dict[str, int]:
        """Return rank -> how long it works in a step, of some ranks, as JSON; ns."""
        known = np.flatnonzero(np.isfinite(self._of_window.work_ns))
        spread_out = known[np.unique(np.linspace(0, len(known) - 1, min(WORK_RANKS, len(known))).round().astype(int))]
        return {str(self._data.ranks[at]): round(float(self._of_window.work_ns[at])) for at in spread_out.tolist()}

    def kept(self, rows: Sequence[RankVerdict]) -> dict[str, Any]:
        """Return what later windows know of this one, as JSON. `rows`: as tested."""
        late = [row for row in rows if row.rank in self._index and (row.names_rank or "explained_by" in row.evidence)]
        late = sorted(late, key=lambda row: -row.lost_ns)[:KEPT_RANKS]
        named = [row.rank for row in rows if row.rank in self._index and row.names_rank]
        since = [self._odds[rank].since if rank in self._odds else self._window for rank in named]
        since += [odds.since for odds in self._odds.values() if odds.is_named]
        groups = by_value({rank: _short(odds) for rank, odds in self._odds.items()})
        return {
            "late": round(float(self.lateness.max(initial=0.0))),
            "step": round(self._without_link_ns),
            "busy": round(self._of_window.busy_ns),
            "work": self._work_kept(),
            "latest": self._latest,
            "since": min(since, default=-1),
            "odds": sorted(groups, key=lambda group: -max(group[0][0]))[:KEPT_GROUPS],
            "inspected": self._inspected,
            "longest": {str(row.rank): round(float(self._of_window.longest[self._index[row.rank]])) for row in late},
        }


def _median(values: Floats) -> float:
    """Return the median of what is known, NaN without."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan


def _variation(values: Floats) -> float:
    """Return by how much the steps of windows vary, of which these are the values; ns."""
    steps = values[:, STEP]
    return float(np.median(np.abs(steps - np.median(steps)))) if len(steps) else 0.0


def _is_suspect(odds: Odds) -> bool:
    return odds.mean >= SUSPECTED


def _short(odds: Odds) -> tuple[tuple[float, ...], int, float, int]:
    """Return what is kept of odds in small steps, and of the cost with one digit, so that alike ranks are one."""
    steps = (round(math.log(max(value, 1e-3)) / math.log(STEP_OF_ODDS)) for value in odds.values)
    values = tuple(float(f"{STEP_OF_ODDS**step:.6g}") for step in steps)
    return values, odds.since, float(f"{odds.cost:.0e}"), int(odds.is_named)
