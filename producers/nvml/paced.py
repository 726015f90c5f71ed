"""Readings that cost much, repeated as seldom as their cost wants: what NVML takes differs by GPU and links."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Most CPU that one group of such readings takes for a GPU; share of a core. Three groups of eight GPUs take 1.2%.
SHARE = 0.0005
#: Longest time until they are repeated all the same: the rollup is by the minute; s.
LONGEST_S = 60.0
Row = dict[str, int]


@dataclass
class PacedReadings:
    """Repeats a group of readings at an interval, or later where their CPU would exceed SHARE. Used by one thread.

    Attributes:
        interval_s: shortest time between two; 0 = with every sample.
        cpu_s: CPU time of the calling thread; s.
    """

    interval_s: float
    cpu_s: Callable[[], float] = time.thread_time
    _row: Row | None = field(default=None, init=False)
    _read_ns: int = field(default=0, init=False)
    _rest_ns: int = field(default=0, init=False)

    def read(self, now_ns: int, readings: Callable[[], Row], *, force: bool = False) -> Row:
        """Return the readings, or those of the last time. Raises what `readings` raises."""
        new = self.read_due(now_ns, readings, force=force)
        return (self._row or {}) if new is None else new

    def read_due(self, now_ns: int, readings: Callable[[], Row], *, force: bool = False) -> Row | None:
        """Return the readings, None while they are not due. Raises what `readings` raises."""
        if self._row is not None and not force and 0 <= now_ns - self._read_ns < self._rest_ns:
            return None
        before = self.cpu_s()
        self._row = readings()
        rest_s = min(max((self.cpu_s() - before) / SHARE, self.interval_s), LONGEST_S)
        self._read_ns, self._rest_ns = now_ns, int(rest_s * 1e9)
        return self._row
