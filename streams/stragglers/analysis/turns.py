"""Turns: in a job with jitter now one rank is the latest, now another. A rank is named only beyond that.

The null: all ranks of a job are late by turns, as often and for as long as the others were, in this window and in those
before. A turn is what costs at least half as much a step, by the same component. A rank that is late in more steps, or
more often, than 1 of 1,000 windows has by chance is late consistently (derivation: docs/design/stragglers.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.chance import at_least, late_at_least
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.turn_history import (
    ANY,
    COMPONENTS,
    PIECES,
    TurnHistory,
    pieces,
    summarize_turns,
)
from drumline.streams.stragglers.analysis.window_data import Floats, Ints, WindowData, comparable, peer_median

#: Ranks that a late one is compared with in a window: enough for the rate of turns.
PEERS = 64
#: A rank that is late in so many of another's late steps is late together with it, not by turns.
TOGETHER = 0.8
#: Turns per step before any was seen, in as many steps.
PRIOR = (0.05, 1.0)
#: Lengths of a turn after which turns as long as that would have been seen.
SEEN = 30
#: Tests of a rank in a window.
TESTS = 4


@dataclass(frozen=True)
class StepLosses:
    """Holds how late each rank was in each step of a window that ranks met in.

    Attributes:
        losses: [R, S] ns that a rank was later than its median peer; -inf = not compared.
        components: [R, S] number of the component that it spent most on, beyond its median peer.
        excess: [R, ANY] ns over the window.
        step_ns: length of a step.
    """

    losses: Floats
    components: Ints
    excess: Floats
    step_ns: float


@dataclass(frozen=True)
class Lateness:
    """Holds how the ranks of a window were late.

    Attributes:
        steps: of the window.
        is_consistent: bool [R], ranks that are late beyond turns.
        kept: what later windows compare with, as JSON.
    """

    steps: StepLosses
    is_consistent: NDArray[np.bool_]
    kept: dict[str, Any]


def step_losses(data: WindowData, config: StragglerConfig, step_ns: float) -> StepLosses:
    """Return how late each rank was, against its lockstep group, or the pipeline of a rank without peers."""
    shape = data.budget["comm_exposed_ns"].shape
    losses, excess = np.full(shape, -np.inf), np.full((ANY, *shape), -np.inf)
    pipelines = [group for group in data.communicators if group.baseline is not None]
    for group in (*data.lockstep_groups, *pipelines):
        exposed = comparable(data, group, "comm_exposed_ns", config.quorum)
        unset = ~np.isfinite(losses[group.members]).any(1)
        members = group.members[unset]
        losses[members] = np.nan_to_num(peer_median(group, exposed) - exposed, nan=-np.inf)[unset]
        for number, name in enumerate(COMPONENTS):
            values = comparable(data, group, name, config.quorum)
            excess[number, members] = np.nan_to_num(values - peer_median(group, values), nan=-np.inf)[unset]
    met = np.isfinite(losses).any(0)
    losses, excess = losses[:, met], excess[:, :, met]
    total = np.where(np.isfinite(excess), excess, 0.0).sum(2).T
    return StepLosses(losses, excess.argmax(0), total, step_ns)


def find_consistent_ranks(
    data: WindowData, attribution: Attribution, history: TurnHistory, config: StragglerConfig, step_ns: float
) -> Lateness:
    """Return which ranks with a loss of `config.suspect` are late beyond the turns that ranks of the job take."""
    steps = step_losses(data, config, step_ns)
    test = _Test(data.ranks, steps, history, config)
    late = np.flatnonzero(attribution.share >= config.suspect).tolist()
    is_consistent = np.zeros(len(data.ranks), bool)
    is_consistent[late] = [test.is_beyond_turns(index, float(attribution.lost_ns[index])) for index in late]
    kept = summarize_turns(data.ranks, steps.losses, steps.components, step_ns)
    kept |= {"named": data.ranks[is_consistent].tolist(), "late": data.ranks[late].tolist()}
    return Lateness(steps, is_consistent, kept)


class _Test:
    """Compares the late ranks of one window with the turns of the others."""

    def __init__(self, ranks: Ints, steps: StepLosses, history: TurnHistory, config: StragglerConfig) -> None:
        self._ranks, self._steps, self._history, self._config = ranks, steps, history, config
        self._seen = np.flatnonzero(np.isfinite(steps.losses).any(1))
        self._count = steps.losses.shape[1]
        leaders = steps.losses.argmax(0) if self._count else np.zeros(0, np.int64)
        losses, excess = steps.losses, np.maximum(steps.excess, 0.0)
        #: [R] mean loss in a step, and the component that explains most of a rank's excess.
        self.means = np.where(np.isfinite(losses), losses, 0.0).sum(1) / max(1, self._count)
        most = excess.max(1)
        explains = (most > 0.0) & (most >= config.cause_share * excess.sum(1))
        self.components = np.where(explains, excess.argmax(1), ANY)
        self._leaders, self._costs = ranks[leaders], np.maximum(steps.losses[leaders, np.arange(self._count)], 0.0)

    def is_beyond_turns(self, index: int, lost_ns: float) -> bool:
        """Return whether turns explain the lateness of the rank at `index` in fewer than 1 of 1,000 windows.

        Where compute hides most of its loss, that part is taken to be the same in each step.
        """
        count = self._count
        if not count:
            return True
        seen, lost = float(self.means[index]), lost_ns / count
        hidden = lost - seen if 2.0 * seen <= lost else 0.0
        rank, component = int(self._ranks[index]), int(self.components[index])
        costs = np.maximum(self._steps.losses[index] + hidden, 0.0)
        # Half of what a late step costs: of the mean weighted by cost, so that a fault now and then has its own size.
        least = max(0.5 * float((costs**2).sum()) / max(1.0, float(costs.sum())), 1.0)
        row = costs >= least
        late, turns = int(row.sum()), pieces(row)
        others, together = self._others(index, row, least, component)
        before = self._history.of_others(rank, together, least, component, len(self._seen))
        own_late, own_steps = self._history.of_one(rank, least, component)
        last_late, last_steps = self._history.of_one(rank, least, component, windows=1)
        if late + own_late < 2:
            return False
        apart = (self._leaders != rank) & ~np.isin(self._leaders, together)
        others_late, others_turns = int(others.sum()) + before.late, pieces(others) + before.turns
        free = max(0, others.size - int(others.sum()) + before.free)
        cost = float(self._costs[apart].sum()) + before.cost_ns
        has_jitter = cost >= self._config.suspect * (self._steps.step_ns * count + before.time_ns)
        length = self._length(others_late, others_turns, before.steps, has_jitter)
        hits, misses = PRIOR[0] + others_turns, PRIOR[1] + free
        begins = (hits + math.sqrt(hits)) / (hits + math.sqrt(hits) + misses)
        stays = max(1.0 - 1.0 / length, begins)
        chances = [
            late_at_least(late, count, begins, stays),
            late_at_least(late + last_late, count + last_steps, begins, stays),
            at_least(turns, count - late + turns, hits, misses),
        ]
        if own_late:
            here = int((apart & (self._costs >= least)).sum())
            spread = max(before.spread(here), 2.0 * length - 1.0 if others_turns and has_jitter else 1.0)
            hits, misses = PRIOR[0] + others_late / spread, PRIOR[1] + free / spread
            often = int((late + own_late) / spread)
            chances.append(at_least(often, math.ceil((count + own_steps) / spread), hits, misses))
        tests = TESTS if others_turns else 1  # without turns of others all are the same
        return tests * len(self._seen) * min(chances) <= self._config.chance

    def _others(self, index: int, row: NDArray[np.bool_], least: float, component: int) -> tuple[Any, Ints]:
        """Return bool [P, S], steps in which other ranks were late instead, and the ranks that are late together."""
        peers = self._seen[self._seen != index]
        peers = peers[:: max(1, -(-len(peers) // PEERS))]
        others = self._steps.losses[peers] >= least
        apart = (others & row).sum(1) < TOGETHER * max(1, int(row.sum()))
        if component != ANY:
            others &= self._steps.components[peers] == component
        return others[apart] & ~row, self._ranks[peers[~apart]]

    def _length(self, late: int, turns: int, steps: int, has_jitter: bool) -> float:
        """Return the steps that a turn lasts, of the turns of others.

        In a job with jitter turns may be longer than those seen, the more so the fewer steps were seen.
        """
        if not turns:
            return 1.0
        unseen = max(0.0, 1.0 - steps / (SEEN * self._config.turn_steps)) if has_jitter else 0.0
        prior = 1.0 + (self._config.turn_steps - 1.0) * unseen
        return max(1.0, (prior * PIECES + late) / (PIECES + turns))
