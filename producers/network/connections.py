"""TCP connections of a network namespace, as the kernel counts what each one has sent.

A socket of NETLINK_SOCK_DIAG answers with them all, without a right and without touching who holds them. Layouts are
those of Linux's public headers: linux/netlink.h, linux/inet_diag.h, linux/tcp.h (`struct tcp_info`, which grows at its
end: busy times came with 4.10, retransmitted bytes with 4.19).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Container
from typing import NamedTuple

from drumline.producers.network.netlink import attributes, dump

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
_REQUEST = struct.Struct("=BBBxI48x")
#: struct inet_diag_msg: family, state; ports; addresses; queue of what is to be sent; inode.
_SOCKET = struct.Struct("=BBxx2s2s16s16s20xI4xI")
INFO = 2  # INET_DIAG_INFO
#: States of TCP in which a connection may still send: established, and closed by the other end (net/tcp_states.h).
_STATES = 1 << 1 | 1 << 8
#: Of struct tcp_info: largest segment and number of segments sent again; bytes acknowledged and received; the rate, and
#: times in us; bytes sent again.
_SEGMENTS, _BYTES = struct.Struct("=16xI80xI"), struct.Struct("=120xQQ")
_RATES, _RETRANSMITTED = struct.Struct("=160xQQQ"), struct.Struct("=208xQ")
#: Addresses of IPv4 in IPv6, and the loopback of both.
_MAPPED, _LOOPBACK, LOOPBACK_NET = bytes(10) + b"\xff\xff", bytes(15) + b"\x01", 127


class TcpConnection(NamedTuple):
    """Counts what one end of a connection has sent since it was opened.

    Attributes:
        local, remote: "address:port" of both ends.
        inode: of the socket, by which /proc/PID/fd names it.
        acknowledged: bytes that the other end has.
        received: bytes that the other end sent.
        busy_us: time in which some had been given to the kernel and were not acknowledged.
        receiver_us: part of it in which the receiver had no room for more.
        retransmitted: bytes that were sent again.
        delivery_rate: bytes a second at which the last bytes in flight arrived, 0 = none yet; slower ones that the
            sender itself caused are passed over by the kernel.
        queued: bytes that were given to the kernel and are not acknowledged; -1 = unknown.
    """

    local: str
    remote: str
    inode: int
    acknowledged: int
    received: int
    busy_us: int
    receiver_us: int
    retransmitted: int
    delivery_rate: int
    queued: int = -1


def read_connections(inodes: Container[int]) -> list[TcpConnection]:
    """Return the connections of this namespace to other hosts. Raises OSError where the kernel has no such answer.

    `inodes`: of the sockets that are wanted.
    """
    out: list[TcpConnection] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), _STATES)
        for message in dump(NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, body, SOCK_DIAG_BY_FAMILY):
            if (connection := parse_connection(message, inodes)) is not None:
                out.append(connection)
    return out


def parse_connection(message: bytes, inodes: Container[int]) -> TcpConnection | None:
    """Return a connection; None for one that is not wanted, within this host, or of a kernel that does not count."""
    if len(message) < _SOCKET.size:
        return None
    family, _, local_port, remote_port, local, remote, queued, inode = _SOCKET.unpack_from(message)
    if inode not in inodes:
        return None
    info = next((value for kind, value in attributes(message[_SOCKET.size :]) if kind == INFO), b"")
    if len(info) < _RATES.size:
        return None
    ends = [_end(family, address, port) for address, port in ((local, local_port), (remote, remote_port))]
    if ends[0][0] == ends[1][0] or ends[1][1]:
        return None
    acknowledged, received = _BYTES.unpack_from(info)
    rate, busy, receiver = _RATES.unpack_from(info)
    if len(info) >= _RETRANSMITTED.size:
        (again,) = _RETRANSMITTED.unpack_from(info)
    else:
        segment, segments = _SEGMENTS.unpack_from(info)
        again = segment * segments
    names = [f"{address}:{port}" for address, _, port in ends]
    return TcpConnection(names[0], names[1], inode, acknowledged, received, busy, receiver, again, rate, queued)


def _end(family: int, address: bytes, port: bytes) -> tuple[str, bool, int]:
    """Return address, whether it is this host's loopback, and port; one of IPv4 is written as such."""
    if family == socket.AF_INET6 and not address.startswith(_MAPPED):
        return f"[{socket.inet_ntop(family, address)}]", address == _LOOPBACK, int.from_bytes(port, "big")
    four = address[12:] if family == socket.AF_INET6 else address[:4]
    return socket.inet_ntop(socket.AF_INET, four), four[0] == LOOPBACK_NET, int.from_bytes(port, "big")
