"""LatenessHistory: how late ranks were in a job's earlier windows, of what was kept of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumline.streams.core.thresholds import StragglerConfig

#: Kinds of ranks by the window before: the latest, late, neither.
LATEST, LATE, OTHER = "latest", "late", "other"


@dataclass(frozen=True)
class LatenessHistory:
    """Holds how late ranks were in the windows before; ns a step.

    Attributes:
        windows: of the last ones that named no rank, what the latest rank lost, and its spread by step; oldest first.
        before: the same of the window before, if it named no rank: it counts for ranks that were not late in it.
        in_row: rank -> windows in a row, to the one before, in which it was too late for a turn, named or not.
        longest: rank -> its latest step of the window before, of ranks that were late there.
        latest: the latest rank of the window before, -1 = none was late.
        streak: what it lost in the windows in a row, to the one before, in which it was the latest.
        before_streak: as `windows`, of those before.
    """

    windows: Sequence[tuple[float, float]] = ()
    before: tuple[float, float] | None = None
    in_row: Mapping[int, int] = field(default_factory=dict)
    longest: Mapping[int, float] = field(default_factory=dict)
    latest: int = -1
    streak: Sequence[float] = ()
    before_streak: Sequence[tuple[float, float]] = ()

    def kind(self, rank: int) -> str:
        """Return the kind of a rank, by which it is compared with other windows."""
        return LATEST if rank == self.latest else LATE if rank in self.longest else OTHER

    def of(self, kind: str) -> Sequence[tuple[float, float]]:
        """Return the windows that ranks of a kind are compared with: the latest one's present streak does not count."""
        if kind == LATEST:
            return self.before_streak
        return self.windows if self.before is None or kind == LATE else [*self.windows, self.before]


def healthy_windows(entries: Mapping[int, Mapping[str, Any]]) -> list[int]:
    """Return the windows whose lateness is known and that name no rank, ascending. `entries`: window -> `kept` of it.

    Windows beside one that names a rank, in which it was late too, are a fault's begin and end, and do not count.
    """
    none = frozenset[str]()
    named = {at: frozenset(map(str, entry["named"])) for at, entry in entries.items() if entry}
    beside = {at: named.get(at - 1, none) | named.get(at + 1, none) for at in named}
    return [at for at in sorted(named) if not named[at] and not beside[at] & entries[at]["longest"].keys()]


def load_lateness(known: Mapping[int, Mapping[str, Any]], config: StragglerConfig) -> LatenessHistory:
    """Return the lateness of earlier windows. `known`: window -> `kept` of it; {} = unknown."""
    order = sorted(known)
    entries, healthy = [known[at] for at in order], [at for at in healthy_windows(known) if at != order[-1]]
    # As many as are kept however late this window is evaluated; after a long fault, those before it.
    recent = [at for at in healthy if at >= order[-config.history_windows :][0]]
    kept = max(recent, healthy[-config.baseline_windows :], key=len)
    windows = [_values(known[at]) for at in kept]
    last = entries[-1] if entries else {}
    if not last:
        return LatenessHistory(windows)
    latest, begin = int(last["latest"]), len(entries)
    while begin and latest >= 0 and (not entries[begin - 1] or entries[begin - 1]["latest"] == latest):
        begin -= 1
    return LatenessHistory(
        windows,
        None if last["named"] else _values(last),
        {int(rank): int(count) for rank, count in last["in_row"].items()},
        {int(rank): float(late) for rank, late in last["longest"].items()},
        latest,
        [float(entry["largest"]) for entry in entries[begin:] if entry],
        windows[: sum(at < order[begin] for at in kept)] if begin < len(order) else windows,
    )


def _values(entry: Mapping[str, Any]) -> tuple[float, float]:
    return float(entry["largest"]), float(entry["spread"])
