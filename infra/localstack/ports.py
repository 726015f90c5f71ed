"""Loopback ports of the local stack: whether they are free, and who has them."""

from __future__ import annotations

import errno
import socket

import psutil

from drumline.infra.config.state_dir import StackError


def holder(port: int) -> str:
    """Which process listens there, in words; empty where the system does not tell."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f" (process {connection.pid}, {psutil.Process(connection.pid).name()})" if connection.pid else ""
    except (psutil.Error, OSError):
        pass
    return ""


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now (connections that linger do not count)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def require_free(ports: dict[str, tuple[str, int]]) -> None:
    """`ports`: setting -> (what listens there, port). Raises StackError naming every port in use and its setting."""
    taken = [
        f"port {port} for {what} is in use{holder(port)}; set {setting} to a free one"
        for setting, (what, port) in ports.items()
        if not is_free(port)
    ]
    if taken:
        raise StackError("\n".join(taken))
    numbers = [port for _, port in ports.values()]
    if len(set(numbers)) < len(numbers):
        raise StackError(
            "two ports of the local stack are the same: " + ", ".join(f"{s}={p}" for s, (_, p) in ports.items())
        )
