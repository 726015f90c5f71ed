"""Notice work that has come to a standstill although the broker answers, so that the worker ends and another goes on.

Two things close windows of sources that fell silent: ticks come back from Kafka, and what they caused is acknowledged.
In a rebalance storm a worker kept its partitions with all records read and closed no window for ten minutes (chaos.md).
The cause is not known; a worker that reads its state back continues.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Work stands still for so long although new ticks are acknowledged, s: an election of a leader takes less.
STANDSTILL_S = 60.0
#: A broker that acknowledged no tick for longer does not answer, and work goes on once it does; s.
ANSWER_S = 5.0


class WorkStandsStill(RuntimeError):
    """Fatal for this worker: its successor reads the records again, and stores no result twice."""


class StandstillDetector:
    """Watches the work of one worker. Owned by `StreamWorker`; used in its event loop. `after_s`: see STANDSTILL_S."""

    def __init__(self, after_s: float = STANDSTILL_S) -> None:
        self._after_s, self._seen_at = after_s, float("-inf")
        self._since: dict[str, tuple[int, float]] = {}  # name -> (done so far, since when)

    def observe(self, work: Mapping[str, tuple[int, int]], answered: float, now: float) -> None:
        """Take in the work: name -> (messages done so far, messages in work); called every second.

        `answered`: when the broker acknowledged a tick last; monotonic, as `now`. Raises WorkStandsStill.
        """
        is_fresh = now - self._seen_at > ANSWER_S or now - answered > ANSWER_S  # after a recovery, or without a broker
        self._seen_at = now
        for name, (done, waiting) in work.items():
            before, since = self._since.get(name, (done, now))
            if is_fresh or not waiting or done != before:
                since = now
            self._since[name] = done, since
            if now - since > self._after_s:
                raise WorkStandsStill(
                    f"Kafka answers, but nothing of {name} was done for {now - since:.0f} s: this worker ends, and the "
                    "next one continues from the stored state"
                )
