"""TCP connections between ranks of one run that deliver nothing, as the kernels of their hosts count (gpu.transfer.v1).

Pure. Where a link is cut, all ranks of a ring stand still, and none differs in its calls. But only the sender at that
link has bytes that are not acknowledged; the others have nothing to send, or a receiver without room.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np

from drumline.schemas.record_table import Ints, RecordTable

#: Bytes acknowledged in an interval from which a connection moves; rows of less are of stalled ones only.
LEAST_BYTES = 1 << 16
#: Time for which a row of a stalled connection counts, by the newest record of its rank: agents send one a second; ns.
FRESH_NS = 4_000_000_000
#: The same by the clock of its run, for ranks of which no more comes: clocks of hosts differ; ns. That clock is behind
#: those of this part of the ranks, which may be wrong.
RUN_FRESH_NS, AHEAD_PART = 30_000_000_000, 4
#: Rows in a row of a connection that is stalled: a second that loses packets is no cut link. The time between two, of
#: which agents of a loaded host leave some out; ns.
LEAST_INTERVALS, MOST_GAP_NS = 3, 3_500_000_000
#: Period at which the connections of a rank that moves are noted again: they are opened at the start; ns.
NOTED_NS = 10_000_000_000
#: Ends of connections that a run keeps; of more, the oldest go, this part at a time.
MOST_ENDS, EVICTED_PART = 1 << 16, 16
#: Stalled connections that a run keeps; with more, the oldest go.
MOST_STALLED = 4_096
#: Part of the bytes that wait in the other direction, below which a direction only waits for acknowledgements.
LEAST_PART = 0.1
#: Bytes of memory of an end, and of a stalled connection. Estimated.
END_BYTES, STALLED_BYTES = 300, 500


class StalledPair(NamedTuple):
    """Names two ranks between which nothing is delivered: what the first one sent is not acknowledged."""

    sender: int
    receiver: int


class _Stall(NamedTuple):
    """Holds the newest row of a stalled connection: the number of those in a row, and when the newest was sent."""

    rank: int
    queued: int
    intervals: int
    sent_ns: int


class StalledConnections:
    """Keeps which rank holds which end, and the connections that are stalled. Of one run.

    Times are those at which agents sent their records, so that records that are read again show the same.

    Attributes:
        ends: (own end, other end) of a connection -> the rank that has it.
    """

    __slots__ = ("_last_ns", "_noted", "_stalled", "ends")

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str], int] = {}
        self._noted: dict[int, int] = {}
        self._stalled: dict[tuple[str, str], _Stall] = {}
        self._last_ns: dict[int, int] = {}  # rank -> when its last record was sent

    @property
    def memory(self) -> int:
        """Return the bytes that it takes, as estimated."""
        return END_BYTES * len(self.ends) + STALLED_BYTES * len(self._stalled)

    def advance(self, ranks: Ints, sent_ns: Ints) -> None:
        """Note that records of these ranks were sent then, and forget stalls that are older."""
        newest: dict[int, int] = {}
        for rank, now_ns in zip(ranks.tolist(), sent_ns.tolist(), strict=True):
            newest[rank] = max(now_ns, newest.get(rank, 0))
        self._last_ns |= newest
        if not self._stalled:
            return
        least_ns = sorted(self._last_ns.values())[-1 - len(self._last_ns) // AHEAD_PART] - RUN_FRESH_NS
        old = [
            name
            for name, stall in self._stalled.items()
            if stall.sent_ns < max(least_ns, newest.get(stall.rank, 0) - FRESH_NS)
        ]
        for name in old:
            del self._stalled[name]

    def apply(self, table: RecordTable) -> None:
        """Take in the rows of connections of a run; those of NCCL's proxy operations are passed over."""
        columns, sent = table.columns, table.number("sent_ns")
        self.advance(table.number("rank"), sent)
        is_tcp = columns["peer"] < 0
        if not is_tcp.any():
            return
        waited = 2 * columns["network_ns"] >= columns["duration_ns"].astype(np.int64)
        is_still = is_tcp & waited & (columns["bytes"] < LEAST_BYTES) & (columns["queued"] != 0)
        local_names, remote_names = table.lists("locals"), table.lists("remotes")
        stalled_ranks = {stall.rank for stall in self._stalled.values()}
        of_parts = zip(table.number("rank").tolist(), sent.tolist(), table.ends[:-1], table.ends[1:], strict=True)
        for part, (rank, sent_ns, begin, end) in enumerate(of_parts):
            is_due = abs(sent_ns - self._noted.get(rank, -NOTED_NS)) >= NOTED_NS  # a clock may be set back
            wanted = is_tcp if is_due or rank in stalled_ranks else is_still
            for row in (np.flatnonzero(wanted[begin:end]) + begin).tolist():
                name = local_names[part][columns["local"][row]], remote_names[part][columns["remote"][row]]
                self._note_end(name, rank)
                if is_still[row]:
                    self._note_stall(name, rank, int(columns["queued"][row]), sent_ns)
                    stalled_ranks.add(rank)
                else:
                    self._stalled.pop(name, None)
            if is_due and end > begin:
                self._noted[rank] = sent_ns

    def _note_end(self, name: tuple[str, str], rank: int) -> None:
        if self.ends.pop(name, None) is None and len(self.ends) >= MOST_ENDS:
            for old in list(islice(self.ends, max(1, MOST_ENDS // EVICTED_PART))):
                del self.ends[old]
        self.ends[name] = rank

    def _note_stall(self, name: tuple[str, str], rank: int, queued: int, sent_ns: int) -> None:
        before = self._stalled.pop(name, None)
        intervals = 1
        if before is not None and sent_ns - before.sent_ns <= MOST_GAP_NS:
            intervals = before.intervals + (sent_ns > before.sent_ns)
        elif len(self._stalled) >= MOST_STALLED:
            del self._stalled[next(iter(self._stalled))]
        self._stalled[name] = _Stall(rank, queued, intervals, sent_ns)

    def pairs(self) -> tuple[StalledPair, ...]:
        """Return the pairs of ranks between which nothing is delivered now, in a fixed order."""
        queued: dict[StalledPair, int] = {}
        for name, stall in self._stalled.items():
            pair = self._pair(*name)
            if stall.intervals >= LEAST_INTERVALS and min(pair) >= 0 and pair.sender != pair.receiver:
                queued[pair] = max(stall.queued, queued.get(pair, -1))
        return tuple(pair for pair in sorted(queued) if not _only_answers(pair, queued))

    def known_ends(self, pairs: Iterable[StalledPair]) -> list[tuple[str, str, int]]:
        """Return the ends of the stalled connections of pairs, by which they are known after a restart."""
        wanted = set(pairs)
        ends: list[tuple[str, str, int]] = []
        for local, remote in self._stalled:
            if (pair := self._pair(local, remote)) in wanted:
                ends += [(local, remote, pair.sender), (remote, local, pair.receiver)]
        return ends

    def _pair(self, local: str, remote: str) -> StalledPair:
        """Return the ranks that have the ends of a connection; -1 = not known."""
        return StalledPair(self.ends.get((local, remote), -1), self.ends.get((remote, local), -1))


def _only_answers(pair: StalledPair, queued: dict[StalledPair, int]) -> bool:
    """Return whether a direction has so little to send that its stall is the other one's.

    A link that delivers one way only stalls both, as it carries no acknowledgements either.
    """
    this_way, back = queued[pair], queued.get(StalledPair(pair.receiver, pair.sender), 0)
    return 0 <= this_way < LEAST_PART * back
