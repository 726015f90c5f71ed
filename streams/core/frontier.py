"""The step that all sources have completed: the lowest of many, without a scan of all of them for every record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Follower(Protocol):
    """Describes a rank or a communicator whose progress counts.

    `complete`: all its steps up to this one have arrived. `silent`: it is excluded.
    """

    complete: int
    silent: bool


class Frontier:
    """Keeps the lowest completed step and the number of followers at it.

    All followers are scanned only once the last of them has left the lowest step: with N ranks about once a step, not N
    times. `followers`: read again for each scan.
    """

    __slots__ = ("_at", "_followers", "_low")

    def __init__(self, followers: Iterable[Follower]) -> None:
        self._followers = followers
        self._low, self._at = -1, 0

    def lowest(self) -> int | None:
        """Return the lowest `complete` of the followers that are not silent, None if there are none."""
        if not self._at:
            steps = [follower.complete for follower in self._followers if not follower.silent]
            if not steps:
                return None
            self._low = min(steps)
            self._at = steps.count(self._low)
        return self._low

    def advance(self, before: int, after: int) -> None:
        """Record that a follower, not silent before or after, went from one step to a later one."""
        if before == self._low and after > before and self._at:
            self._at -= 1

    def add(self, complete: int) -> None:
        """Record that a follower was added, or became active, at a step: the ranks of a job come one after another."""
        if self._at and complete <= self._low:
            self._low, self._at = complete, self._at + 1 if complete == self._low else 1

    def invalidate(self) -> None:
        """Drop the known minimum. Call it after a source was removed or fell silent, or after many became active."""
        self._at = 0
