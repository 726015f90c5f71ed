"""When dead letters are no longer exceptions: better to stop than to empty a topic into the bin. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class FloodGauge:
    """Per topic. Trips after `run` dead records in a row, or when at least `ratio` of the last `window` are dead
    (judged from `run` records on)."""

    run: int
    ratio: float
    window: int = 1_000
    _recent: deque[bool] = field(default_factory=deque)
    _in_a_row: int = 0
    _dead: int = 0

    def add(self, dead: bool) -> str:
        """Count one record; why the sink must stop, or ""."""
        self._in_a_row = self._in_a_row + 1 if dead else 0
        self._recent.append(dead)
        self._dead += dead
        if len(self._recent) > max(self.window, self.run):
            self._dead -= self._recent.popleft()
        if self._in_a_row >= self.run:
            return f"{self._in_a_row} dead records in a row"
        if len(self._recent) >= self.run and self._dead >= self.ratio * len(self._recent):
            return f"{self._dead} of the last {len(self._recent)} records are dead"
        return ""
