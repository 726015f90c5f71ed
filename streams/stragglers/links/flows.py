"""Flows of a window: what one rank sent another over the network, and how fast, by both ends. Pure.

Neither end knows alone how fast the link is. A sender's time on the network is also the receiver's that takes nothing
(sockets), and a receiver's also the sender's that has nothing to send. Whoever is slow, for the other end the data is
there at once, or gone at once. So the faster of the two rates is the link's, or more. Only a receiver that enters late
and then waits for somebody else makes both times long: what it was late is the sender's time no more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import Rows

Floats = NDArray[np.float64]
#: A row of gpu.transfer.v1 as it is kept. Texts are indices of names. Sums are floats: they need no more.
TRANSFER_ROW = np.dtype(
    [("time_ns", "<i8"), ("first_step", "<i8"), ("last_step", "<i8"), ("duration_ns", "<i8"), ("is_send", "u1")]
    + [(name, "<i4") for name in ("rank", "communicator", "nic", "comm_rank", "peer", "local", "remote")]
    + [(name, "<f4") for name in ("transfers", "collectives", "bytes", "busy_ns")]
    + [(name, "<f4") for name in ("network_ns", "retransmitted", "delivery_rate")]
)
#: Part of a sender's time that may be the receiver's lateness, in flows that others are compared with: with more the
#: rate is a bound, not a measure.
MOST_LATE = 0.2
#: Bytes of a flow in a window below which its rate is not evaluated: latency, not bandwidth.
LEAST_BYTES = 1 << 20
#: Stands for the communicator in the name of a flow that the kernel counted.
TCP = "tcp"


class StoredTransfers(NamedTuple):
    """Holds rows (TRANSFER_ROW), and the names that their indices mean."""

    rows: Rows
    communicators: Sequence[str] = ()
    nics: Sequence[str] = ()
    addresses: Sequence[str] = ()


NO_TRANSFERS = StoredTransfers(np.zeros(0, TRANSFER_ROW))


@dataclass(frozen=True, slots=True)
class Flow:
    """Holds what one rank sent another in a window.

    Attributes:
        communicator: its name.
        sender, receiver: ranks of the job.
        nics, receiver_nics: network devices of the two ends; empty = unknown.
        bytes: what was recorded of it.
        transfer_bytes: mean size of a transfer: small ones are slower.
        collectives: number of operations that were recorded of it.
        send_ns, receive_ns: time in which the sender, and the receiver, had data on the network, or waited for it.
        over_tcp: the kernel counted it (connections.py), with bytes that it sent again, `retransmitted`; of all
            communicators of the two ranks: `communicator` is that of most of it.
        stalled_ns: time in which its path carried nothing, and lost what was sent (over TCP).
        late_ns: time of the sender's that may be the receiver's, which came later than it did: at most all of that.
    """

    communicator: str
    sender: int
    receiver: int
    nics: tuple[str, ...]
    receiver_nics: tuple[str, ...]
    bytes: float
    transfer_bytes: float
    collectives: float
    send_ns: float
    receive_ns: float
    late_ns: float = 0.0
    over_tcp: bool = False
    retransmitted: float = 0.0
    stalled_ns: float = 0.0

    @property
    def rate(self) -> float:
        """Return bytes per ns (GB/s) while data was on the network, by the end that saw less of it."""
        return self.bytes / max(min(self.send_ns - self.late_ns, self.receive_ns), 1.0)

    @property
    def is_norm(self) -> bool:
        """True where the rate may be what others, and later windows, are compared with."""
        return self.bytes >= LEAST_BYTES and self.late_ns <= MOST_LATE * self.send_ns

    @property
    def name(self) -> str:
        """Return the key under which later windows know it."""
        return f"{TCP if self.over_tcp else self.communicator} {self.sender} {self.receiver}"


class _End(NamedTuple):
    """Holds what one end of a flow saw."""

    rank: int
    nics: tuple[str, ...]
    transfers: float
    collectives: float
    bytes: float
    busy_ns: float


def window_share(rows: Rows, first_step: int, last_step: int, start_ns: int, end_ns: int) -> Floats:
    """Return the part of each row that lies in a window: by its steps, or by time where it has none."""
    begin, end = np.maximum(rows["first_step"], first_step), np.minimum(rows["last_step"], last_step)
    by_step = (end - begin + 1) / np.maximum(rows["last_step"] - rows["first_step"] + 1, 1)
    after = np.minimum(rows["time_ns"] + rows["duration_ns"], end_ns) - np.maximum(rows["time_ns"], start_ns)
    by_time = after / np.maximum(rows["duration_ns"], 1)
    share: Floats = np.clip(np.where(rows["first_step"] >= 0, by_step, by_time), 0.0, 1.0)
    return share


def join_flows(stored: StoredTransfers, share: Floats) -> list[Flow]:
    """Return the flows of which both ends are known. `share`: the part of each row that counts."""
    inside = (share > 0.0) & (stored.rows["peer"] >= 0)
    rows, share = stored.rows[inside], share[inside]
    if not len(rows):
        return []
    names = ("communicator", "is_send", "comm_rank", "peer", "rank")
    places, at = np.unique(
        np.stack([rows[name].astype(np.int64) for name in names], axis=1), axis=0, return_inverse=True
    )
    sums = np.zeros((4, len(places)))
    for total, name in zip(sums, ("transfers", "collectives", "bytes", "busy_ns"), strict=True):
        np.add.at(total, at.ravel(), rows[name] * share)
    devices: dict[int, set[str]] = defaultdict(set)
    for place, nic in {*zip(at.ravel().tolist(), rows["nic"].tolist(), strict=True)}:
        devices[place].add(stored.nics[nic])
    ends: dict[tuple[int, int, int, int], _End] = {}
    for number, (communicator, is_send, comm_rank, peer, rank) in enumerate(places.tolist()):
        nics = tuple(sorted(devices[number] - {""}))
        ends[communicator, is_send, comm_rank, peer] = _End(rank, nics, *sums[:, number].tolist())
    return [
        _joined(stored.communicators[communicator], end, other)
        for (communicator, is_send, comm_rank, peer), end in ends.items()
        if is_send and (other := ends.get((communicator, 0, peer, comm_rank))) is not None and end.transfers > 0
    ]


def _joined(communicator: str, send: _End, receive: _End) -> Flow:
    ends = send.rank, receive.rank, send.nics, receive.nics
    size = send.bytes / send.transfers
    return Flow(communicator, *ends, send.bytes, size, send.collectives, send.busy_ns, receive.busy_ns)


def summarize_flows(flows: Sequence[Flow], left_out: Collection[str], most: int) -> dict[str, list[float]]:
    """Return what later windows know of flows, by name: rate and size of a transfer.

    `left_out`: names of those that are slow. `most`: flows; of more none is kept, as each window's are read again.
    """
    slow = set(left_out)
    kept = [flow for flow in flows if flow.is_norm and flow.name not in slow]
    return {flow.name: [round(flow.rate, 4), round(flow.transfer_bytes)] for flow in kept} if len(kept) <= most else {}
