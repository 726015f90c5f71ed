"""Limit dead letters: the sink stops instead of moving a whole topic to its dead-letter topic."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class DeadLetterLimit:
    """Stops the sink when too many records of a topic are rejected.

    A bad deployment can make every record undecodable; without a limit the sink would move the whole topic to its
    dead-letter topic. Trips after `run` rejected records in a row, or when at least `ratio` of the last `window`
    records (once `run` have been seen) were rejected. Counted per topic.
    """

    run: int
    ratio: float
    window: int = 1_000
    _recent: deque[bool] = field(default_factory=deque)
    _in_a_row: int = 0
    _rejected: int = 0

    def add(self, rejected: bool) -> str:
        """Count one record; return the reason why the sink must stop, or ""."""
        self._in_a_row = self._in_a_row + 1 if rejected else 0
        self._recent.append(rejected)
        self._rejected += rejected
        if len(self._recent) > max(self.window, self.run):
            self._rejected -= self._recent.popleft()
        if self._in_a_row >= self.run:
            return f"{self._in_a_row} rejected records in a row"
        if len(self._recent) >= self.run and self._rejected >= self.ratio * len(self._recent):
            return f"{self._rejected} of the last {len(self._recent)} records were rejected"
        return ""
