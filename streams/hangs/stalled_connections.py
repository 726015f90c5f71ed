"""TCP connections between ranks of one run that deliver nothing, as the kernels of their hosts count (gpu.transfer.v1).

Pure. Where a link is cut, all ranks of a ring stand still, and none differs in its calls. But only the sender at that
link has bytes that are not acknowledged; the others have nothing to send, or a receiver without room.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from drumline.schemas.record_table import RecordTable

#: Bytes acknowledged in an interval from which a connection moves; rows of less are of stalled ones only.
LEAST_BYTES = 1 << 16
#: Time for which a row of a stalled connection counts: agents send one a second; ns.
FRESH_NS = 15_000_000_000
#: Period at which the connections of a rank that moves are noted again: they are opened at the start; ns.
NOTED_NS = 10_000_000_000
#: Ends of connections that a run keeps; with more, pairs of some ranks are not known.
MOST_ENDS = 1 << 16
#: Part of the bytes that wait in the other direction, below which a direction only waits for acknowledgements.
LEAST_PART = 0.1
#: Bytes of memory of an end. Estimated.
END_BYTES = 300


class StalledPair(NamedTuple):
    """Names two ranks between which nothing is delivered: what the first one sent is not acknowledged."""

    sender: int
    receiver: int


class StalledConnections:
    """Keeps which rank holds which end, and the connections that are stalled. Of one run.

    Attributes:
        ends: (own end, other end) of a connection -> the rank that has it.
    """

    __slots__ = ("_noted", "_stalled", "ends")

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str], int] = {}
        self._noted: dict[int, int] = {}
        self._stalled: dict[tuple[str, str], tuple[int, int]] = {}

    def apply(self, table: RecordTable, now_ns: int) -> None:
        """Take in the rows of connections of a run; those of NCCL's proxy operations are passed over."""
        columns = table.columns
        is_tcp = columns["peer"] < 0
        if not is_tcp.any():
            return
        waited = 2 * columns["network_ns"] >= columns["duration_ns"].astype(np.int64)
        is_still = is_tcp & waited & (columns["bytes"] < LEAST_BYTES) & (columns["queued"] != 0)
        local_names, remote_names = table.lists("locals"), table.lists("remotes")
        of_parts = zip(table.number("rank").tolist(), table.ends[:-1], table.ends[1:], strict=True)
        for part, (rank, begin, end) in enumerate(of_parts):
            is_due = now_ns - self._noted.get(rank, -NOTED_NS) >= NOTED_NS
            wanted = is_tcp if is_due or self._stalled else is_still
            for row in (np.flatnonzero(wanted[begin:end]) + begin).tolist():
                local = local_names[part][columns["local"][row]]
                name = local, remote_names[part][columns["remote"][row]]
                if name in self.ends or len(self.ends) < MOST_ENDS:
                    self.ends[name] = rank
                if is_still[row]:
                    self._stalled[name] = int(columns["queued"][row]), now_ns
                else:
                    self._stalled.pop(name, None)
            if is_due and end > begin:
                self._noted[rank] = now_ns

    def pairs(self, now_ns: int) -> tuple[StalledPair, ...]:
        """Return the pairs of ranks between which nothing is delivered now, in a fixed order."""
        queued: dict[StalledPair, int] = {}
        for (local, remote), (waiting, at_ns) in list(self._stalled.items()):
            if now_ns - at_ns > FRESH_NS:
                del self._stalled[local, remote]
                continue
            sender, receiver = self.ends.get((local, remote), -1), self.ends.get((remote, local), -1)
            if sender >= 0 and receiver >= 0 and sender != receiver:
                pair = StalledPair(sender, receiver)
                queued[pair] = max(waiting, queued.get(pair, -1))
        return tuple(pair for pair in sorted(queued) if not _only_answers(pair, queued))

    def known_ends(self, pairs: Iterable[StalledPair]) -> list[tuple[str, str, int]]:
        """Return the ends of the stalled connections of pairs, by which they are known after a restart."""
        wanted = set(pairs)
        ends: list[tuple[str, str, int]] = []
        for local, remote in self._stalled:
            sender, receiver = self.ends.get((local, remote), -1), self.ends.get((remote, local), -1)
            if StalledPair(sender, receiver) in wanted:
                ends += [(local, remote, sender), (remote, local, receiver)]
        return ends


def _only_answers(pair: StalledPair, queued: dict[StalledPair, int]) -> bool:
    """Return whether a direction has so little to send that its stall is the other one's.

    A link that delivers one way only stalls both, as it carries no acknowledgements either.
    """
    this_way, back = queued[pair], queued.get(StalledPair(pair.receiver, pair.sender), 0)
    return 0 <= this_way < LEAST_PART * back
