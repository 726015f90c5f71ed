"""When to try again what somebody else has to mend. Pure: takes clock and chance as arguments."""

from __future__ import annotations

from dataclasses import dataclass

#: The bound on the wait: after the first failure, and from the seventh on; s.
FIRST_S, LAST_S = 0.2, 10.0


def backoff_s(attempt: int, jitter: float) -> float:
    """Seconds to wait after failed try `attempt` (1, 2, ...). `jitter` in 0..1, drawn anew each time, is the share of
    the bound: full jitter, so that programs that failed together do not come back together
    (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)."""
    return float(min(LAST_S, FIRST_S * 2.0 ** min(attempt - 1, 10)) * jitter)


@dataclass(slots=True)
class Retry:
    """`attempt`: tries that failed in a row. `at`: when the next one is due, on the caller's clock."""

    attempt: int = 0
    at: float = 0.0

    def failed(self, now: float, jitter: float) -> float:
        """Seconds to wait."""
        self.attempt += 1
        wait_s = backoff_s(self.attempt, jitter)
        self.at = now + wait_s
        return wait_s

    def worked(self) -> None:
        self.attempt, self.at = 0, 0.0
