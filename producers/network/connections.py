"""TCP connections of a network namespace, as the kernel counts what each one has sent.

A socket of NETLINK_SOCK_DIAG answers with them all, without a right and without touching who holds them. Layouts are
those of Linux's public headers: linux/netlink.h, linux/inet_diag.h, linux/tcp.h (`struct tcp_info`, which grows at its
end: busy times came with 4.10, retransmitted bytes with 4.19).
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Container, Iterator
from typing import NamedTuple

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST, DUMP = 0x1, 0x300
ERROR, DONE = 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
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
_ANSWER_BYTES = 1 << 18
TIMEOUT_S = 5.0


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
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(TIMEOUT_S)
        kernel.bind((0, 0))
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (INFO - 1), _STATES)
            kernel.send(_HEADER.pack(_HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, REQUEST | DUMP, family, 0) + body)
            is_done = False
            while not is_done:
                connections, is_done = parse_answer(kernel.recv(_ANSWER_BYTES), inodes)
                out += connections
    return out


def parse_answer(answer: bytes, inodes: Container[int]) -> tuple[list[TcpConnection], bool]:
    """Return the connections of one answer, and whether it is the last. Raises OSError for the kernel's error."""
    out: list[TcpConnection] = []
    at = 0
    while at + _HEADER.size <= len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        if length < _HEADER.size or at + length > len(answer):
            break
        body = answer[at + _HEADER.size : at + length]
        if kind in (ERROR, DONE):
            code = struct.unpack_from("=i", body)[0] if len(body) >= 4 else 0
            if code < 0:
                raise OSError(-code, os.strerror(-code))
            return out, True
        if kind == SOCK_DIAG_BY_FAMILY and (connection := _connection(body, inodes)) is not None:
            out.append(connection)
        at += length + -length % 4
    return out, False


def _connection(body: bytes, inodes: Container[int]) -> TcpConnection | None:
    """Return a connection; None for one that is not wanted, within this host, or of a kernel that does not count."""
    if len(body) < _SOCKET.size:
        return None
    family, _, local_port, remote_port, local, remote, queued, inode = _SOCKET.unpack_from(body)
    if inode not in inodes:
        return None
    info = next((value for kind, value in _attributes(body[_SOCKET.size :]) if kind == INFO), b"")
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


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size or at + length > len(data):
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += length + -length % 4
