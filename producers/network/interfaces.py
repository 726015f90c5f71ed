"""Network interfaces of a namespace by their addresses, which the ends of connections have too (linux/if_addr.h)."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

from drumline.producers.network.netlink import attributes, dump

GET_ADDRESS, NEW_ADDRESS = 22, 20  # RTM_GETADDR, RTM_NEWADDR
#: struct ifaddrmsg: family and number of the interface.
_ADDRESS = struct.Struct("=BxxxI")
#: IFA_ADDRESS, IFA_LOCAL: of a line between two points the first is the other end's.
_ANY_END, _LOCAL = 1, 2


def read_interfaces() -> dict[str, str]:
    """Return address -> interface that has it, with addresses as connections have them. Raises OSError."""
    messages = dump(socket.NETLINK_ROUTE, GET_ADDRESS, bytes(_ADDRESS.size), NEW_ADDRESS)
    return dict(known for message in messages if (known := _address(message)) is not None)


def _address(message: bytes) -> tuple[str, str] | None:
    if len(message) < _ADDRESS.size:
        return None
    family, number = _ADDRESS.unpack_from(message)
    values = dict(attributes(message[_ADDRESS.size :]))
    packed = values.get(_LOCAL, values.get(_ANY_END, b""))
    with suppress(OSError, ValueError):  # the interface went meanwhile, or another family
        name, address = socket.if_indextoname(number), socket.inet_ntop(family, packed)
        return (f"[{address}]" if family == socket.AF_INET6 else address), name
    return None
