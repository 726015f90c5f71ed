"""JitterHistory: in a job with jitter now one rank is the latest, now another. A rank is named only beyond that.

The null: the ranks take turns at being late, for any number of steps, and what a turn costs is drawn from an
exponential distribution whose 90 % quantile is that of the job's steps so far. Then a turn costs more than n times the
quantile with probability 0.1 ** n: one in 1,000 for n = 3 (derivation: docs/design/stragglers.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.attribution import Attribution
from drumline.streams.stragglers.analysis.window_data import Floats, WindowData, comparable, peer_median, step_length

#: Steps kept of a window, evenly spread over it.
STEPS = 64
#: The job's row names at most so many ranks, those that cost it most.
RANKS = 8
#: Part of what turns cost that a rank must have to be one of those that take turns.
TAKES_PART = 0.1


@dataclass(frozen=True)
class JitterHistory:
    """Holds what lateness by turns cost in earlier windows; ns a step.

    Attributes:
        steps: [k, 2], a row per step: the latest rank, and its loss.
        windows: [k, 2], the same of windows without their worst steps (`_typical`).
        named: ranks that were named in the window before.
        led: rank that lost most in the window before, and in how many windows in a row, less those in which its loss
            alone was enough to name it.
        newest: rows of `steps` of the window before, if it named ranks: no turn where they are late again.
    """

    steps: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    windows: Floats = field(default_factory=lambda: np.zeros((0, 2)))
    named: frozenset[int] = frozenset()
    led: tuple[int, int] = (-1, 0)
    newest: int = 0

    def of_one(self, rank: int) -> Floats:
        """Return what turns of a rank cost, in steps."""
        costs: Floats = self.steps[self.steps[:, 0] == rank, 1]
        return costs

    def of_peers(self, rank: int, late: set[int]) -> tuple[Floats, Floats, int]:
        """Return what turns of other ranks cost, in steps and in windows, and the number of steps.

        `late`: ranks that are late now: one that was named in the window before was at fault there.
        """
        steps, windows = self.steps, self.windows
        if self.newest and self.named & late:
            steps, windows = steps[: -self.newest], windows[:-1]
        return steps[steps[:, 0] != rank, 1], windows[windows[:, 0] != rank, 1], len(steps)


@dataclass(frozen=True)
class Lateness:
    """Holds how the ranks of a window were late.

    Attributes:
        losses: [R, S] ns that a rank was later than its median peer in a step; NaN = not compared.
        is_consistent: bool [R], ranks that are late beyond turns.
        kept: what later windows compare with, as JSON.
    """

    losses: Floats
    is_consistent: NDArray[np.bool_]
    kept: dict[str, Any]


def is_healthy(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry (`Lateness.kept`) is of a window that was evaluated and names no rank."""
    return bool(entry and entry["windows"] and not entry["named"])


def without_losses(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry for a window that was not evaluated after it."""
    return {**entry, "steps": [], "windows": []} if entry else {}


def load_history(entries: Sequence[Mapping[str, Any]], config: StragglerConfig) -> JitterHistory:
    """Return the turns of the last windows. `entries`: `Lateness.kept` of all windows before, oldest first.

    A rank that was named in one window and in neither the one before nor the one after has taken a turn. Windows with
    other names, and those beside them where the same rank was late, are left out: it was at fault, from some step on.
    """
    empty = frozenset[int]()
    named = [empty, empty, *(frozenset(entry["named"]) if entry else empty for entry in entries), empty, empty]
    fault = [named[at] & (named[at - 1] | named[at + 1]) for at in range(1, len(named) - 1)]  # of the entry before `at`
    kept = [
        entry
        for at, entry in enumerate(entries)
        if entry and entry["windows"] and not (fault[at] | fault[at + 1] | fault[at + 2]).intersection(entry["late"])
    ][-config.baseline_windows :]
    rank, windows = entries[-1]["led"] if entries and entries[-1] else (-1, 0)
    newest = len(kept[-1]["steps"]) if kept and named[-3] and kept[-1] is entries[-1] else 0
    return JitterHistory(
        np.array([row for entry in kept for row in entry["steps"]], float).reshape(-1, 2),
        np.array([entry["windows"] for entry in kept], float).reshape(-1, 2),
        named[-3],
        (int(rank), int(windows)),
        newest,
    )


def find_consistent_ranks(
    data: WindowData, attribution: Attribution, history: JitterHistory, config: StragglerConfig
) -> Lateness:
    """Return which ranks with a loss of `config.suspect` are late beyond the turns that ranks of the job take.

    With n = `config.jitter_ratio`, a rank is if its loss is n times what turns of its peers cost, and

    - it is late in more steps than chance explains, where each late step falls on any rank; n is less by log10(2) for
      each window before that it led: by chance two ranks lead in turn
    - or it was named in the window before
    - or one step lasts `config.pause_steps` steps longer, and n times longer than any step of its peers before
    """
    losses, sizes = step_losses(data, config)
    per_step = attribution.lost_ns / np.maximum(attribution.steps, 1)
    typical = _typical(losses, per_step)
    late = attribution.share >= config.suspect
    steady = attribution.share * typical / np.maximum(per_step, 1.0) >= config.suspect
    leader = int(np.argmax(np.where(steady, typical, 0.0))) if steady.any() else -1
    late_ranks = set(data.ranks[late].tolist())
    is_consistent, led = np.zeros(len(data.ranks), bool), (-1, 0)
    for index in np.flatnonzero(late).tolist():
        rank, lost_ns = int(data.ranks[index]), float(attribution.lost_ns[index])
        seen = losses[index][np.isfinite(losses[index])]
        of_peers, windows_of_peers, steps = history.of_peers(rank, late_ranks)
        tail = max(_upper(of_peers), _upper(-seen), _upper(windows_of_peers))
        chance = sizes[index] * _chance(seen, lost_ns, history.of_one(rank), of_peers, steps, int(sizes[index]))
        if not steps and _has_late_peers(losses, index):
            chance = 1.0  # turns of some steps each, and no earlier window that could show them
        before = history.led[1] if rank == history.led[0] and index == leader else 0
        ratios = [config.jitter_ratio - windows * math.log10(2.0) for windows in (0, before)]
        at_once, by_now = (chance <= 0.1**ratio and per_step[index] >= ratio * tail for ratio in ratios)
        if index == leader:
            led = (rank, before + int(not at_once))
        again = rank in history.named and per_step[index] >= config.jitter_ratio * tail
        longest = config.pause_steps * float(np.nanmedian(step_length(data)))
        longest = max(longest, config.jitter_ratio * of_peers.max(initial=0.0))
        is_consistent[index] = by_now or again or (steps > 0 and seen.max(initial=0.0) >= longest)
    kept = {"steps": [], "windows": [], "named": data.ranks[is_consistent].tolist(), "led": list(led)}
    kept["late"] = data.ranks[late].tolist()
    if np.isfinite(losses).any():
        latest = _latest(losses, data.ranks)
        kept["steps"] = latest[:: -(-len(latest) // STEPS)].tolist()
        kept["windows"] = _latest(typical[:, None], data.ranks)[0].tolist()
    return Lateness(losses, is_consistent, kept)


def _has_late_peers(losses: Floats, index: int) -> bool:
    """Return whether a peer is late in steps in which the rank is not."""
    row = np.nan_to_num(losses[index])
    peers = np.nan_to_num(np.delete(losses, index, axis=0), nan=0.0).max(0, initial=0.0)
    return bool(((row < row.mean() / 2) & (peers >= row.mean() / 2)).any())


def step_losses(data: WindowData, config: StragglerConfig) -> tuple[Floats, Floats]:
    """Return [R, S]: exposed communication of the median of a rank's group less its own; and [R], the group's size.

    The group is the lockstep group, or the pipeline of a rank without peers.
    """
    losses, sizes = np.full(data.budget["comm_exposed_ns"].shape, np.nan), np.ones(len(data.ranks))
    pipelines = [group for group in data.communicators if group.baseline is not None]
    for group in (*data.lockstep_groups, *pipelines):
        exposed = comparable(data, group, "comm_exposed_ns", config.quorum)
        unset = ~np.isfinite(losses[group.members]).any(1)
        losses[group.members[unset]] = (peer_median(group, exposed) - exposed)[unset]
        sizes[group.members[unset]] = len(group.members)
    return losses, sizes


def _chance(seen: Floats, lost_ns: float, of_one: Floats, of_peers: Floats, steps: int, size: int) -> float:
    """Return the probability that a rank of a group of `size` is late in as many steps of a window as this one is.

    `seen`: its losses; it is late where it loses half of its mean. `of_peers`: what turns of its peers cost in `steps`
    earlier steps, `of_one`: what the rank's did. Each step is late by chance, as often as those were, and the late rank
    is any of the group: in this window, and in all steps so far.
    """
    if 2.0 * seen.sum() <= lost_ns or size < 2:
        return 0.0  # most of `lost_ns` is hidden in compute: only its size counts
    least = seen.mean() / 2
    rate = (float((of_peers >= least).sum()) / (size - 1) + 1 / size) / (steps + 1)
    late, count = int((seen >= least).sum()), len(seen)
    if not steps:  # each late step falls on any rank; that none is much shorter than the others is no chance
        return float(size) ** -late if late < count else 0.0
    before = int((of_one >= least).sum())
    return min(_at_least(late, count, rate), _at_least(before + late, steps + count, rate))


def _at_least(hits: int, count: int, rate: float) -> float:
    """Return the probability of so many hits or more of `count`."""
    return sum(math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(hits, count + 1))


def _typical(losses: Floats, per_step: Floats) -> Floats:
    """Return [R]: the loss of a rank in a step, without its worst tenth of steps (one at least).

    What overlap hides (`per_step` beyond `losses`) counts in the same proportion.
    """
    out = np.array(per_step)
    for index, row in enumerate(losses):
        seen = np.sort(row[np.isfinite(row)])
        if len(seen) > 1 and seen.sum() > 0.0:
            rest = seen[: min(len(seen) - 1, int(0.9 * len(seen)))]
            out[index] *= max(0.0, rest.mean()) / seen.mean()
    return out


def _upper(values: Floats) -> float:
    """Return the 90 % quantile: the largest value where there are ten or fewer; 0 without values."""
    return max(0.0, float(np.sort(values)[int(0.9 * len(values))])) if len(values) else 0.0


def _latest(losses: Floats, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return [S, 2]: the rank with the largest loss in each column that has any, and its loss."""
    values = np.nan_to_num(losses[:, np.isfinite(losses).any(0)], nan=-np.inf)
    return np.stack([ranks[values.argmax(0)], np.maximum(values.max(0), 0.0).astype(np.int64)], axis=1)


@dataclass(frozen=True, slots=True)
class JobJitter:
    """Holds what ranks cost the job that are late by turns.

    Attributes:
        ranks: rank -> its part of `share`, the largest first.
        lost_ns: over the window.
        share: of the window's time.
    """

    ranks: dict[int, float]
    lost_ns: float
    share: float

    @property
    def detail(self) -> str:
        """Return the ranks that take turns, in their order."""
        most = [rank for rank, part in self.ranks.items() if part >= TAKES_PART * self.share][:RANKS]
        return f"rank{'s' * (len(most) > 1)} {' '.join(map(str, sorted(most)))}"


def find_jitter(
    data: WindowData, lateness: Lateness, attribution: Attribution, config: StragglerConfig
) -> JobJitter | None:
    """Return what the latest rank of each step cost, in a window that names no rank; None below `config.suspect`."""
    met = np.isfinite(lateness.losses).any(0)
    length = step_length(data)[met]
    time = float(length.sum())
    if not time > 0.0:
        return None
    losses = np.nan_to_num(lateness.losses[:, met], nan=-np.inf)
    latest, cost = losses.argmax(0), np.clip(losses.max(0), 0.0, length)
    lost = np.bincount(latest, weights=cost, minlength=len(data.ranks))
    late = attribution.share >= config.suspect
    lost = np.where(late, np.maximum(lost, attribution.lost_ns), lost)
    share = min(1.0, float(lost.sum()) / time)
    if share < config.suspect:
        return None
    order = [index for index in np.argsort(-lost, kind="stable").tolist() if lost[index] > 0.0][:RANKS]
    ranks = {int(data.ranks[index]): float(lost[index]) / time for index in order}
    return JobJitter(ranks, share * time, share)
