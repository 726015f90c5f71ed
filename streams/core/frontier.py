"""The step that everybody has completed: the lowest of many, known without looking at all of them for every record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class Follower(Protocol):
    """A rank or a communicator. `complete`: all its steps up to this one are in; `silent`: nobody waits for it."""

    complete: int
    silent: bool


class Frontier:
    """Counts how many stand at the lowest step, and looks at all of `followers` only once the last of them has left it:
    with N ranks about once a step, not N times a step."""

    def __init__(self, followers: Callable[[], Iterable[Follower]]) -> None:
        self._followers = followers
        self._low, self._at = -1, 0

    def lowest(self) -> int | None:
        """The lowest `complete` of those not silent; None where there are none."""
        if not self._at:
            steps = [one.complete for one in self._followers() if not one.silent]
            if not steps:
                return None
            self._low = min(steps)
            self._at = steps.count(self._low)
        return self._low

    def moved(self, before: int, after: int) -> None:
        """One that was not silent before, and is not now, went from step to step; never back."""
        if before == self._low and after > before and self._at:
            self._at -= 1

    def unknown(self) -> None:
        """Somebody came, left, fell silent or spoke again."""
        self._at = 0
