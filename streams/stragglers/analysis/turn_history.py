"""TurnHistory: how often and for how long ranks were late in the windows before (turns.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.window_data import Floats, Ints

#: Budget components, by number: a turn is explained by turns of the same one. The last number: of any.
COMPONENTS = ("idle_ns", "copy_ns", "compute_ns")
ANY = len(COMPONENTS)
#: Sizes of lateness are kept in classes, eight in a doubling, from 1 us on.
CLASSES, PER_DOUBLING, SMALLEST_NS = 240, 8, 1_000.0
#: Steps kept of a window, evenly spread over it.
STEPS = 256
#: Earlier steps of a rank count as the same lateness up to this many times the least.
ALIKE = 8.0
#: Turns that what is assumed of their length weighs as much as; and of windows, for the spread of turns.
PIECES, SPREAD_WINDOWS = 2.0, 4.0


@dataclass(frozen=True, slots=True)
class OthersTurns:
    """Holds what turns of other ranks were in earlier windows: late steps, turns, other steps of ranks; ns.

    Attributes:
        steps: of the windows.
        by_window: late steps of leaders, of each window.
    """

    late: int = 0
    turns: int = 0
    free: int = 0
    cost_ns: float = 0.0
    time_ns: float = 0.0
    steps: int = 0
    by_window: tuple[int, ...] = ()

    def spread(self, here: int) -> float:
        """Return how many times the variance of late steps in a window is that of steps by chance. `here`: now."""
        counts = np.array([*self.by_window, here], float)
        mean = float(counts.mean())
        if not mean > 0.0:
            return 1.0
        squares = float(((counts - mean) ** 2).sum())
        weight = SPREAD_WINDOWS + len(counts) - 1
        return max(1.0, (squares + SPREAD_WINDOWS * mean) / weight / mean)


@dataclass(frozen=True)
class TurnHistory:
    """Holds earlier windows, oldest first.

    Attributes:
        leaders: [k, 4], a row per step: window, latest rank, its loss in ns, its component.
        late, turns: [W, CLASSES] late steps and turns of at least a size, of all ranks.
        at_fault: of each window the ranks that were at fault in it, or beside it.
        step_ns, steps: [W].
        windows: number of windows that count.
    """

    leaders: Ints = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    late: Ints = field(default_factory=lambda: np.zeros((0, CLASSES), np.int64))
    turns: Ints = field(default_factory=lambda: np.zeros((0, CLASSES), np.int64))
    at_fault: Sequence[frozenset[int]] = ()
    step_ns: Floats = field(default_factory=lambda: np.zeros(0))
    steps: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    windows: int = 16

    def of_one(self, rank: int, least: float, component: int, windows: int = 0) -> tuple[int, int]:
        """Return the steps in which a rank was the latest by about such a loss, and all steps, of the last windows."""
        last = self.leaders[self.leaders[:, 0] >= len(self.steps) - (windows or self.windows)]
        is_alike = (last[:, 2] >= least) & (last[:, 2] <= ALIKE * least)
        return int((is_alike & (last[:, 1] == rank) & _is_like(last, component)).sum()), len(last)

    def of_others(self, rank: int, together: Ints, least: float, component: int, ranks: int) -> OthersTurns:
        """Return the turns of ranks other than this one and those late together with it. `ranks`: of the job."""
        windows = self._usable(rank)
        if not len(windows):
            return OthersTurns()
        used = self.leaders[np.isin(self.leaders[:, 0], windows)]
        is_other = (used[:, 1] != rank) & ~np.isin(used[:, 1], together)
        is_late = (used[:, 2] >= least) & _is_like(used, component)
        hits, own = used[is_other & is_late], (used[:, 1] == rank) & is_late
        by_window = np.bincount(hits[:, 0], minlength=len(self.steps))[windows]
        # Leaders have components, all ranks' sizes do not: of theirs as large a part has this one.
        others = used[(used[:, 1] != rank) & (used[:, 2] >= least)]
        part, size = len(hits) / max(1, len(others)), _class_of(np.array([least]))[0]
        late = int(part * max(0, int(self.late[windows, size].sum()) - int(own.sum())))
        turns = int(part * max(0, int(self.turns[windows, size].sum()) - pieces(own)))
        late, turns = max(late, len(hits)), max(turns, int((by_window > 0).sum()))
        steps = self.steps[windows]
        free = (ranks - 1) * int(steps.sum()) - late
        cost, time = float(used[is_other, 2].sum()), float((self.step_ns[windows] * steps).sum())
        return OthersTurns(late, turns, free, cost, time, int(steps.sum()), tuple(by_window.tolist()))

    def _usable(self, rank: int) -> Ints:
        """Return the last windows in which no other rank was at fault."""
        return np.array([at for at, ranks in enumerate(self.at_fault) if not ranks - {rank}][-self.windows :], np.int64)


def load_turns(entries: Sequence[Mapping[str, Any]], config: StragglerConfig) -> TurnHistory:
    """Return the turns of earlier windows. `entries`: `summarize_turns` of all of them, oldest first; {} = unknown."""
    known = [entry for entry in entries[-config.history_windows :] if entry]
    around = [frozenset[int](), *(frozenset(entry["named"]) for entry in known), frozenset[int]()]
    at_fault = []
    for at, entry in enumerate(known):
        late = around[at + 1] | set(entry["late"])
        at_fault.append((around[at] | around[at + 1] | around[at + 2]) & late)
    leaders = [[at, *row] for at, entry in enumerate(known) for row in entry["leaders"]]
    return TurnHistory(
        np.array(leaders, np.int64).reshape(-1, 4),
        _sums([entry["sizes"] for entry in known], 1),
        _sums([entry["sizes"] for entry in known], 2),
        at_fault,
        np.array([entry["step_ns"] for entry in known], float),
        np.array([len(entry["leaders"]) for entry in known], np.int64),
        config.baseline_windows,
    )


def summarize_turns(ranks: Ints, losses: Floats, components: Ints, step_ns: float) -> dict[str, Any]:
    """Return what later windows know of a window's turns, as JSON.

    `leaders`: of each step the latest rank, its loss and component. `sizes`: class of a loss, late steps of it, and
    turns that reach it, less those that began above it.
    """
    every = max(1, -(-losses.shape[1] // STEPS))
    losses, components = losses[:, ::every], components[:, ::every]
    at = np.arange(losses.shape[1])
    latest = losses.argmax(0) if len(at) else np.zeros(0, np.int64)
    costs = np.maximum(losses[latest, at], 0.0).astype(np.int64)
    late = np.where(losses > 0.0, losses, 0.0)
    before = np.concatenate([np.zeros((len(late), 1)), late[:, :-1]], axis=1) if len(at) else late
    begun = late > before
    steps = np.bincount(_class_of(late[late > 0.0]), minlength=CLASSES)
    turns = np.bincount(_class_of(late[begun]), minlength=CLASSES)
    turns -= np.bincount(_class_of(before[begun & (before > 0.0)]), minlength=CLASSES)
    sizes = [[size, int(steps[size]), int(turns[size])] for size in np.flatnonzero(steps | (turns != 0)).tolist()]
    leaders = np.stack([ranks[latest], costs, components[latest, at]], axis=1).tolist() if len(at) else []
    return {"leaders": leaders, "sizes": sizes, "step_ns": round(step_ns)}


def pieces(late: NDArray[np.bool_]) -> int:
    """Return the number of runs of late steps along the last axis."""
    begun = late.copy()
    begun[..., 1:] &= ~late[..., :-1]
    return int(begun.sum())


def _is_like(leaders: Ints, component: int) -> NDArray[np.bool_]:
    like: NDArray[np.bool_] = (leaders[:, 3] == component) | (component == ANY)
    return like


def _class_of(values: Floats) -> Ints:
    sizes = np.floor(PER_DOUBLING * np.log2(np.maximum(values, 1.0) / SMALLEST_NS))
    classes: Ints = np.clip(sizes, 0, CLASSES - 1).astype(np.int64)
    return classes


def _sums(rows: Sequence[Sequence[Sequence[int]]], column: int) -> Ints:
    """Return [W, CLASSES]: the sums over a class and all larger ones."""
    out = np.zeros((len(rows), CLASSES), np.int64)
    for at, sizes in enumerate(rows):
        for row in sizes:
            out[at, row[0]] = row[column]
    sums: Ints = np.cumsum(out[:, ::-1], axis=1)[:, ::-1]
    return sums
