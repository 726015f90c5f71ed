"""Limit dead letters: a flood isolates its producer, or slows its partition down; it is reported, nothing stops."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

#: Rejected records in a row, and the share of the last ones, that are a flood: no accidents any more, but a wrong
#: version, or invented keys. Of a small job 200 records come within seconds.
FLOOD_RUN, FLOOD_RATIO = 200, 0.5
#: How long a flood is reported after its last record; s.
FLOOD_S = 60.0
#: Time that a flooded partition takes for each `run` of rejected records, at least; s. By default 2,000 a second: a
#: dead letter costs about as much as a stored record, so the records between them and behind them hardly wait.
RUN_S = 0.1
#: Producers with rejected records that are remembered, per partition.
PRODUCERS = 200


@dataclass(slots=True)
class DeadLetterLimit:
    """Detects that too many records are rejected.

    Trips after `run` rejected records in a row, or when at least `ratio` of the last `window` records (once `run` have
    been seen) were rejected.
    """

    run: int
    ratio: float
    window: int = 1_000
    _recent: deque[bool] = field(default_factory=deque)
    _in_a_row: int = 0
    _rejected: int = 0

    def add(self, rejected: bool) -> str:
        """Count one record; return the reason if the limit is exceeded, or ""."""
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


@dataclass(slots=True)
class FloodGuard:
    """Detects floods in one partition.

    A producer above the limit is at fault itself: its rejected records still become dead letters, and count no more.
    If several producers together are above it, a deployment or this sink is at fault, or an attacker that invents keys:
    the partition is read more slowly (RUN_S). It is never stopped, for it has records of jobs without fault.
    """

    run: int
    ratio: float
    _partition: DeadLetterLimit = field(init=False)
    _producers: dict[str, DeadLetterLimit | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._partition = DeadLetterLimit(self.run, self.ratio)

    def add(self, producer: str, rejected: bool) -> tuple[str, str]:
        """Count one record; return (reason to isolate its producer, reason to slow the partition down), or "".

        The first is returned for each rejected record of a flooding producer, the second once for a run of records.
        """
        if rejected or producer in self._producers:
            if producer not in self._producers:
                if len(self._producers) >= PRODUCERS:
                    del self._producers[next(iter(self._producers))]
                self._producers[producer] = DeadLetterLimit(self.run, self.ratio)
            limit = self._producers[producer]
            if limit is None:
                if rejected:
                    return "it flooded before", ""
            elif reason := limit.add(rejected):
                self._producers[producer] = None
                self._partition = DeadLetterLimit(self.run, self.ratio)  # which has counted its records
                return reason, ""
        reason = self._partition.add(rejected)
        if reason:
            self._partition = DeadLetterLimit(self.run, self.ratio)
        return "", reason
