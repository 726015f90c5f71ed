"""Sends and receives of a process with each peer of its communicators: rows of gpu.progress.v1. Pure.

The n-th send of a rank to another meets the n-th receive of that one from it. So where NCCL does not measure, who
waits is known by the numbers alone, and all are published.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from drumline.producers.rings.operations import POINT_TO_POINT
from drumline.producers.rings.state import RingState
from drumline.schemas.columns import Array

#: Most rows of a communicator, and most pairs of peer and direction of a process that are counted.
MOST_ROWS = MOST_COUNTED = 256
IS_PEER = np.isin(np.arange(256), POINT_TO_POINT)
_DESCRIPTION = ("function", "datatype", "count", "host_ns")


class PeerCounts(NamedTuple):
    """Counts sends to a peer, or receives from it. `record`: the first that has not ended, or else the last one: its
    function, datatype, elements and host time.
    """

    peer: int
    called: int
    begun: int
    ended: int
    record: list[int]


def note_peers(operations: Array, untimed: Array, communicators: Array, state: RingState) -> None:
    """Note in the state what lies in the records that it is about to pass: sends and receives, not to the rank itself.

    What is not measured counts as ended, not as begun.
    """
    for comm in np.unique(operations["comm"]).tolist():
        of_comm = operations["comm"] == comm
        name = str(int(communicators["id"][comm]))
        counted = state.peers.setdefault(name, {})
        for key, called in _groups(operations[of_comm]).items():
            if key not in counted and sum(map(len, state.peers.values())) >= MOST_COUNTED:
                state.peers_left_out = sorted({*state.peers_left_out, name})
                continue
            passed, unknown = counted.get(key, [0, 0])[:2]
            at = np.flatnonzero(of_comm)[called]
            unknown = _unknown(untimed[at], unknown)
            counted[key] = [passed + len(at), unknown, *description_of(operations[at[-1]])]
        if not counted:
            del state.peers[name]
    state.thinned |= bool(untimed.any())


def forget_peers(known: Collection[str], state: RingState) -> None:
    """Forget what is counted of all communicators but the known ones, which makes room for others."""
    state.peers = {name: counted for name, counted in state.peers.items() if name in known}
    state.peers_left_out = [name for name in state.peers_left_out if name in known]


def are_counted(comm: str, state: RingState) -> bool:
    """Return whether all sends and receives of a communicator are counted."""
    return comm not in state.peers_left_out


def peer_counts(
    operations: Array, done: Array, started: Array, untimed: Array, comm: str, state: RingState
) -> list[PeerCounts]:
    """Return the counts of a communicator, of its sends and receives behind the ring's position and those before.

    While all are measured, only of those that have not ended.
    """
    counted, present = state.peers.get(comm, {}), _groups(operations)
    thinned = state.thinned or bool(untimed.any())
    result: list[PeerCounts] = []
    for key in sorted({*present, *(counted if thinned else ())}):
        passed, unknown, *last = counted.get(key, [0, 0])
        called = present.get(key, np.empty(0, np.int64))
        waiting, begun = np.flatnonzero(~done[called]), np.flatnonzero(started[called])
        ended = passed + (int(waiting[0]) if len(waiting) else len(called))
        newest = passed + int(begun[-1]) + 1 if len(begun) else passed - min(unknown, passed)
        if not len(waiting):
            newest = ended - _unknown(untimed[called], unknown)
            if not thinned:
                continue
        at = waiting[:1] if len(waiting) else np.arange(len(called))[-1:]
        record = description_of(operations[called[at[0]]]) if len(at) else last
        result.append(PeerCounts(int(key.split(":")[0]), passed + len(called), newest, ended, record))
    return result[:MOST_ROWS]


def _groups(operations: Array) -> dict[str, Array]:
    """Return the places of the operations of each peer and function, as `peer:function`."""
    pairs = np.stack((operations["peer"].astype(np.int64), operations["function"].astype(np.int64)))
    keys, group = np.unique(pairs, axis=1, return_inverse=True)
    return {
        f"{peer}:{function}": np.flatnonzero(group.ravel() == i) for i, (peer, function) in enumerate(keys.T.tolist())
    }


def _unknown(untimed: Array, before: int) -> int:
    """Return how many of the last operations are not measured. `before`: of those before them."""
    timed = np.flatnonzero(~untimed)
    return len(untimed) - 1 - int(timed[-1]) if len(timed) else len(untimed) + before


def description_of(record: np.void) -> list[int]:
    """Return function, datatype, elements and host time of an operation."""
    return [int(record[name]) for name in _DESCRIPTION]
