"""Delays between retries: exponential backoff with full jitter. Clock and random numbers are arguments."""

from __future__ import annotations

from dataclasses import dataclass

#: Maximum delay after the first failure, and from the seventh on; s.
FIRST_S, LAST_S = 0.2, 10.0


def backoff_s(attempt: int, jitter: float) -> float:
    """Return the delay after failed attempt `attempt` (1, 2, ...) in s.

    `jitter` is a new random number in 0..1 for each call. Full jitter spreads the retries of programs that failed
    together (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
    """
    return float(min(LAST_S, FIRST_S * 2.0 ** min(attempt - 1, 10)) * jitter)


@dataclass(slots=True)
class Retry:
    """Counts failed attempts of one operation and computes when the next one is due.

    attempt: attempts that failed in a row.
    at: time of the next attempt, on the caller's clock; s.
    """

    attempt: int = 0
    at: float = 0.0

    def failed(self, now: float, jitter: float) -> float:
        """Record a failure and return the delay in s."""
        self.attempt += 1
        wait_s = backoff_s(self.attempt, jitter)
        self.at = now + wait_s
        return wait_s

    def worked(self) -> None:
        """Record a success: the next failure starts with the shortest delay."""
        self.attempt, self.at = 0, 0.0
