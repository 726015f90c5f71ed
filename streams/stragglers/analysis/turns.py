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
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData, comparable, peer_median, step_length

#: Details that were measured in the rank's own steps, or on its own GPU: not chance, however much the job's steps vary.
MEASURED = frozenset(
    {
        "garbage_collection", "checkpoint", "data_loader", "synchronisation",
        "pageable", "more_work", "shared_gpu", "throttled",
    }
)  # fmt: skip
#: Details from a sample a second of the process, which may be of the window before: they count without a history.
SAMPLED = frozenset({*NO_CPU, "python_lock", "page_faults", "disk"})
#: Ranks of which the next window knows their latest step, those that lost most.
KEPT_RANKS = 64
#: How a row that names nobody was judged: late in one step only, as late as ranks are by turns, or later, but once.
ONE_STEP, TURN, ONCE = "one_step", "turn", "once"


@dataclass(frozen=True)
class TurnHistory:
    """Holds how late ranks were in the windows before; ns a step.

    Attributes:
        largest: of the last windows that named no rank, what their latest rank lost, oldest first.
        before: the same of the window before, if it named no rank: it counts for ranks that were not late in it.
        once: ranks that were too late for a turn in the window before, named or not.
        longest: rank -> its latest step of the window before, of ranks that were late there.
        spread: the largest by which steps varied in a window of `largest`.
    """

    largest: Sequence[float] = ()
    before: float | None = None
    once: frozenset[int] = frozenset()
    longest: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0

    def sizes(self, rank: int) -> Sequence[float]:
        """Return what the latest ranks lost in the windows that a rank is compared with."""
        return self.largest if self.before is None or rank in self.longest else [*self.largest, self.before]


def load_turns(entries: Sequence[Mapping[str, Any]], config: StragglerConfig) -> TurnHistory:
    """Return the lateness of earlier windows. `entries`: `kept` of all of them, oldest first; {} = unknown.

    Windows beside one that names a rank, in which it was late too, are a fault's begin and end, and do not count.
    """
    none = frozenset[str]()
    named = [none, *(frozenset(map(str, entry["named"])) if entry else none for entry in entries), none]
    counted = [
        entry
        for at, entry in enumerate(entries[:-1], 1)
        if entry and not named[at] and not (named[at - 1] | named[at + 1]) & entry["longest"].keys()
    ]
    last = entries[-1] if entries else {}
    if not last:
        return TurnHistory([float(entry["largest"]) for entry in counted[-config.baseline_windows :]])
    return TurnHistory(
        [float(entry["largest"]) for entry in counted[-config.baseline_windows :]],
        None if last["named"] else float(last["largest"]),
        frozenset(last["once"]),
        {int(rank): float(late) for rank, late in last["longest"].items()},
        max((float(entry["spread"]) for entry in counted), default=0.0),
    )


class TurnTest:
    """Compares the late ranks of one window with the turns that ranks take.

    Attributes:
        losses: [R, S] ns that a rank was later than its median peer; NaN = not compared.
        lateness: [R] ns a step, of what a rank lost; its latest step counts no more than its second.
    """

    def __init__(
        self, data: WindowData, attribution: Attribution, history: TurnHistory, config: StragglerConfig
    ) -> None:
        self._data, self._attribution, self._history, self._config = data, attribution, history, config
        self._index = {rank: index for index, rank in enumerate(data.ranks.tolist())}
        self.losses = _losses(data, config)
        length = step_length(data)
        self._step_ns = float(np.nanmedian(length)) if np.isfinite(length).any() else 0.0
        self._spread = spread(length)
        steps = np.maximum(1, attribution.steps)
        latest = np.where(np.isfinite(self.losses), self.losses, -np.inf)
        if latest.shape[1] > 1:
            latest = np.sort(latest, axis=1)
        self._longest = latest.max(1, initial=0.0)
        second = latest[:, -2].copy() if latest.shape[1] > 1 else np.zeros(len(latest))
        for rank, before in history.longest.items():
            if rank in self._index:
                second[self._index[rank]] = max(second[self._index[rank]], before)
        odd = np.clip(self._longest - np.maximum(second, 0.0), 0.0, None)
        self.lateness = np.maximum(attribution.lost_ns - odd, 0.0) / steps
        third = latest[:, -3] if latest.shape[1] > 2 else np.zeros(len(latest))
        #: [R] ns that a rank lost without its two latest steps, each as late as the third instead.
        self._often = attribution.lost_ns - 2 * self._longest + 2 * np.maximum(third, 0.0)
        self._most = float((attribution.lost_ns / steps).max(initial=0.0))

    def judged(self, row: RankVerdict) -> RankVerdict:
        """Return the row of a late rank; if turns may explain it, without a name, but with the evidence."""
        if row.severity <= OK or row.rank not in self._index:
            return row
        index = self._index[row.rank]
        late, least = float(self.lateness[index]), self._config.suspect * self._step_ns
        limit = max(self.limit(index), least)
        if late < least:
            how = ONE_STEP
        elif row.cause.detail in MEASURED or (row.cause.detail in SAMPLED and not self._has_history(row.rank)):
            return row
        elif late < limit:
            how = TURN
        elif row.rank not in self._history.once and not self._is_sure(index, late, limit, least):
            how = ONCE
        else:
            return row
        evidence = {"judged": how, "late_ns": round(late), "limit_ns": round(limit)}
        return replace(row, severity=OK, cause=NO_CAUSE, evidence=evidence)

    def _is_sure(self, index: int, late: float, limit: float, least: float) -> bool:
        """Return whether a rank is named in its first window: late by far, or without jitter, in three steps."""
        often = self._often[index] >= least * self._attribution.steps[index]
        return bool(often and (limit <= least or late >= self._config.sure_ratio * limit))

    def limit(self, index: int) -> float:
        """Return how late the latest rank may be by chance; ns a step.

        Before there is a history, a window may vary as much as the steps of one did.
        """
        rank = int(self._data.ranks[index])
        if self._has_history(rank):
            size, degrees = spread_of_sizes(self._history.sizes(rank))
        else:
            size = max(self._spread, spread(self.losses[index]), self._history.spread)
            degrees = max(1, int(self._attribution.steps[index]) - 1)
        return times_spread(self._config.chance, degrees) * size

    def _has_history(self, rank: int) -> bool:
        return len(self._history.sizes(rank)) >= self._config.baseline_windows_min

    def kept(self, rows: Sequence[RankVerdict]) -> dict[str, Any]:
        """Return what later windows know of this one, as JSON. `rows`: as judged."""
        late = [row for row in rows if row.rank in self._index and (row.names_rank or "judged" in row.evidence)]
        late = sorted(late, key=lambda row: -row.lost_ns)[:KEPT_RANKS]
        once = [row.rank for row in late if row.names_rank or row.evidence["judged"] == ONCE]
        longest = {str(row.rank): round(float(self._longest[self._index[row.rank]])) for row in late}
        kept = {"largest": round(self._most), "spread": round(self._spread), "once": once, "longest": longest}
        return {**kept, "named": [row.rank for row in late if row.names_rank]}


def _losses(data: WindowData, config: StragglerConfig) -> Floats:
    """Return [R, S] how late each rank was, against its lockstep group; NaN = not compared."""
    losses = np.full(data.budget["comm_exposed_ns"].shape, np.nan)
    for group in data.lockstep_groups:
        exposed = comparable(data, group, "comm_exposed_ns", config.quorum)
        losses[group.members] = peer_median(group, exposed) - exposed
    return losses
