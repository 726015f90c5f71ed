"""Rates of TCP connections, second by second: rows of gpu.transfer.v1, from counts since they were opened. Pure.

Of a send, `busy_ns` is the time with data that the other end had not acknowledged, `peer_wait_ns` that part in which it
had no room, and `network_ns` the rest. A receiver that has room but does not read acknowledges late (40 ms): that is
`network_ns`, too, but not in `delivery_rate`. So the faster of the two rates is the path's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from types import MappingProxyType

from drumline.producers.batching.sample_envelopes import UNKNOWN
from drumline.producers.network.connections import TcpConnection

#: Bytes in an interval below which a direction of a connection has no row: control messages. A send that waited for
#: the network half of the interval has one all the same: the path may be stalled.
LEAST_BYTES = 1 << 16
#: Rows of a process in an interval: those that carried most, half of them at least if there are so many, and those of
#: stalled paths. Rings and trees need a few for each channel.
MOST_ROWS = 256
SEND, RECEIVE = "send", "receive"

Row = Mapping[str, int | str]


@dataclass
class _Followed:
    """State of one connection: its counts at the begin of the interval and now, and the rates seen in it."""

    begin: TcpConnection
    now: TcpConnection
    rates: list[int] = field(default_factory=list)


class ConnectionRates:
    """Follows the connections of one host from one answer of the kernel to the next. Used by one thread.

    A connection is known by both ends and the number of its socket; those that an answer does not have are forgotten.
    """

    def __init__(self) -> None:
        self._followed: dict[tuple[str, str, int], _Followed] = {}
        self._begin_ns = 0

    def refresh(self, connections: Iterable[TcpConnection]) -> None:
        """Apply the counts of now."""
        followed = {}
        for connection in connections:
            name = connection.local, connection.remote, connection.inode
            known = self._followed.get(name) or _Followed(connection, connection)
            if connection.acknowledged > known.now.acknowledged and connection.delivery_rate:
                known.rates.append(connection.delivery_rate)
            known.now = connection
            followed[name] = known
        self._followed = followed

    def take(
        self, now_ns: int, owners: Mapping[int, Collection[str]], interfaces: Mapping[str, str] = MappingProxyType({})
    ) -> tuple[dict[str, list[Row]], int]:
        """Return the rows of the interval that ends now, by process, and how many more were left out.

        `owners`: inode of a socket -> processes that hold it; one that several hold is the first one's. `interfaces`:
        by address, of this host.
        """
        begin_ns, self._begin_ns = self._begin_ns, now_ns
        rows: dict[str, list[Row]] = {}
        for (*_, inode), known in self._followed.items():
            names = owners.get(inode)
            if names and 0 < begin_ns < now_ns:
                rows.setdefault(min(names), []).extend(_rows(known, begin_ns, now_ns, interfaces))
            known.begin, known.rates = known.now, []
        left_out = 0
        for name, of_process in rows.items():
            left_out += max(0, len(of_process) - MOST_ROWS)
            rows[name] = _chosen(of_process)
        return {name: of_process for name, of_process in rows.items() if of_process}, left_out


def _chosen(rows: list[Row]) -> list[Row]:
    """Return at most MOST_ROWS rows, those first that carried most."""
    rows = sorted(rows, key=lambda row: -int(row["bytes"]))
    if len(rows) <= MOST_ROWS:
        return rows
    moving = [row for row in rows if int(row["bytes"]) >= LEAST_BYTES]
    stalled = rows[len(moving) :]
    chosen = moving[: MOST_ROWS - min(len(stalled), MOST_ROWS // 2)]
    return chosen + stalled[: MOST_ROWS - len(chosen)]


def _rows(known: _Followed, begin_ns: int, now_ns: int, interfaces: Mapping[str, str]) -> Iterable[Row]:
    begin, now = known.begin, known.now
    length_ns = now_ns - begin_ns
    common: dict[str, int | str] = {
        "start_ns": begin_ns, "duration_ns": length_ns, "local": now.local, "remote": now.remote, "communicator": "",
        "nic": interfaces.get(now.local.rpartition(":")[0], ""), "comm_rank": -1, "peer": -1, "slowest_channel": -1,
        "first_step": -1, "last_step": -1,
    }  # fmt: skip
    sent, received = now.acknowledged - begin.acknowledged, now.received - begin.received
    busy_ns = min(max(0, now.busy_us - begin.busy_us) * 1_000, length_ns)
    waited_ns = min(max(0, now.receiver_us - begin.receiver_us) * 1_000, busy_ns)
    if sent >= LEAST_BYTES or busy_ns - waited_ns >= length_ns // 2:
        yield common | {
            "direction": SEND, "bytes": max(0, sent), "busy_ns": busy_ns, "peer_wait_ns": waited_ns,
            "network_ns": busy_ns - waited_ns, "retransmitted": max(0, now.retransmitted - begin.retransmitted),
            "delivery_rate": median_low(known.rates) if known.rates else UNKNOWN, "queued": now.queued,
        }  # fmt: skip
    if received >= LEAST_BYTES:
        yield common | {
            "direction": RECEIVE,
            "bytes": received,
            "retransmitted": UNKNOWN,
            "delivery_rate": UNKNOWN,
            "queued": UNKNOWN,
        }
