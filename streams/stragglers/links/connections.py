"""Flows over TCP: how fast pairs of ranks could send, as the kernels of their hosts count. Pure.

NCCL's own times do not show it: a send is over for it once the kernel has the data, and in a ring all receive at the
pace of the slowest. A kernel knows for each connection how long data waited for its acknowledgement, and how fast the
path delivered what was in flight. Both are at most the path's rate: the first has the time of a receiver that reads
late, too, and the second is a sample of each second. So the faster one is compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.stragglers.links.flows import LEAST_BYTES, Floats, Flow, StoredTransfers

#: A connection that carries less of a pair's bytes than this part of the largest one's has only control messages.
LEAST_PART = 0.1
#: An interval in which data waited for the path half of the time, and came at a third of its rate or less: where bytes
#: were sent again, a path that carries nothing now and then. Its median rate does not show that. It loses what is in
#: flight, no fewer bytes than these; a probe after a pause sends a part of one packet again.
STALLED_PART, STALLED_RATIO, LEAST_LOST = 0.5, 3.0, 1 << 13
#: Part of what NCCL recorded of a pair that its connections carry at least, if the data goes over them. Some
#: collectives are recorded only, so it is more as a rule.
CARRIED = 0.5


class Connections(NamedTuple):
    """Holds what one rank sent another over all their connections in a window.

    Attributes:
        bytes: what was acknowledged, and `retransmitted`: sent again.
        network_ns: mean time of a connection with data on the network, by bytes: parallel ones are busy at once.
        delivery_rate: sum of the rates at which their paths delivered, bytes per ns (GB/s); 0 = unknown.
        stalled_ns: mean time in which a path carried nothing, and lost what was sent.
        nics, receiver_nics: interfaces of the two ends.
    """

    bytes: float
    retransmitted: float
    network_ns: float
    delivery_rate: float
    stalled_ns: float = 0.0
    nics: tuple[str, ...] = ()
    receiver_nics: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Return bytes per ns (GB/s) that the path took at least, with the time in which it carried nothing."""
        moving = max(self.bytes / max(self.network_ns, 1.0), self.delivery_rate)
        return self.bytes / max(self.bytes / max(moving, 1e-9) + self.stalled_ns, 1.0)


def join_connections(stored: StoredTransfers, share: Floats) -> dict[tuple[int, int], Connections]:
    """Return what ranks sent each other over TCP, by sender and receiver: of connections whose both ends are known.

    `share`: the part of each row that counts.
    """
    inside = (share > 0.0) & (stored.rows["peer"] < 0)
    rows, share = stored.rows[inside], share[inside]
    holder = {(row["local"], row["remote"]): (int(row["rank"]), int(row["nic"])) for row in rows}
    of_connection: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for number in np.flatnonzero(rows["is_send"] == 1).tolist():
        row = rows[number]
        receiver, _ = holder.get((row["remote"], row["local"]), (-1, 0))
        if receiver >= 0 and receiver != row["rank"]:
            of_connection[int(row["rank"]), receiver, int(row["local"]), int(row["remote"])].append(number)
    pairs: dict[tuple[int, int], list[Connections]] = defaultdict(list)
    for (sender, receiver, local, remote), numbers in of_connection.items():
        of, part = rows[numbers], share[numbers]
        size, again, network_ns = (float((of[name] * part).sum()) for name in ("bytes", "retransmitted", "network_ns"))
        known = of["delivery_rate"] > 0.0
        rate = _median(of["delivery_rate"][known], (of["bytes"] * part)[known]) / 1e9 if known.any() else 0.0
        stalled_ns = _stalled_ns(of, part, rate) if again >= LEAST_LOST else 0.0
        nics = [_names(stored.nics[holder[ends][1]]) for ends in ((local, remote), (remote, local))]
        pairs[sender, receiver].append(Connections(size, again, network_ns, rate, stalled_ns, *nics))
    return {pair: _sum(connections) for pair, connections in pairs.items()}


def _stalled_ns(rows: Rows, share: Floats, rate: float) -> float:
    """Return the time of a connection in which its path carried nothing. `rate`: of the path, bytes per ns."""
    expected_ns = rows["bytes"] / max(rate, 1e-9)
    waited = rows["network_ns"] >= STALLED_PART * rows["duration_ns"]
    stalled = waited & (rows["network_ns"] >= STALLED_RATIO * expected_ns)
    return float(((rows["network_ns"] - expected_ns) * share)[stalled].sum()) if rate > 0.0 else 0.0


def _median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _names(nic: str) -> tuple[str, ...]:
    return (nic,) if nic else ()


def _sum(connections: Sequence[Connections]) -> Connections:
    largest = max(connection.bytes for connection in connections)
    used = [connection for connection in connections if connection.bytes >= LEAST_PART * largest]
    size = sum(connection.bytes for connection in used)
    busy_ns = sum(connection.bytes * connection.network_ns for connection in used) / max(size, 1.0)
    stalled_ns = sum(connection.bytes * connection.stalled_ns for connection in used) / max(size, 1.0)
    again = sum(connection.retransmitted for connection in used)
    nics, receiver_nics = _union(of.nics for of in used), _union(of.receiver_nics for of in used)
    rate = sum(connection.delivery_rate for connection in used)
    return Connections(size, again, busy_ns, rate, stalled_ns, nics, receiver_nics)


def _union(names: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(sorted({*chain.from_iterable(names)}))


def with_connections(
    flows: Sequence[Flow],
    pairs: Mapping[tuple[int, int], Connections],
    least_ns: float,
    collectives: Mapping[str, float] | None = None,
) -> list[Flow]:
    """Return flows, with one that the kernel counted in place of those of a pair of ranks whose data goes over TCP.

    `least_ns`: time that data of a pair is on the network in the window for its rate to be evaluated: a shorter one
    could not have cost the job what makes a suspect. `collectives`: of each communicator in the window, of which NCCL
    records a part. Where connections carry less than these would, NCCL's data may go over another network, so both are
    evaluated.
    """
    known = collectives or {}
    of_pair: dict[tuple[int, int], list[Flow]] = defaultdict(list)
    for flow in flows:
        of_pair[flow.sender, flow.receiver].append(flow)
    out = []
    for pair in of_pair.keys() | pairs.keys():
        recorded, counted = of_pair.get(pair, []), pairs.get(pair)
        size = sum(flow.bytes for flow in recorded)
        if counted is None or counted.bytes < max(LEAST_BYTES, CARRIED * size):
            out += recorded
            continue
        if counted.bytes < CARRIED * sum(_whole(flow, known) for flow in recorded):
            out += recorded
        if counted.network_ns >= least_ns:
            out.append(_flow(pair, recorded, counted))
    return sorted(out, key=lambda flow: (flow.sender, flow.receiver, flow.communicator))


def _whole(flow: Flow, collectives: Mapping[str, float]) -> float:
    """Return the bytes of a flow, with the collectives that were not recorded."""
    return flow.bytes * max(1.0, collectives.get(flow.communicator, 0.0) / max(flow.collectives, 1.0))


def _flow(pair: tuple[int, int], recorded: Sequence[Flow], counted: Connections) -> Flow:
    known = max(recorded, key=lambda flow: flow.bytes, default=None)
    busy_ns = counted.bytes / max(counted.rate, 1e-9)
    return Flow(
        "" if known is None else known.communicator, *pair, counted.nics, counted.receiver_nics, counted.bytes, 1.0,
        0.0, busy_ns, busy_ns, over_tcp=True, retransmitted=counted.retransmitted, stalled_ns=counted.stalled_ns,
    )  # fmt: skip
