"""Loopback ports of the local stack: checks that they are free, and the processes that use them."""

from __future__ import annotations

import errno
import socket

from drumline.infra.config.state_dir import StackError


def holder(port: int) -> str:
    """Return the listening process as text for a message; "" where the system does not report it."""
    import psutil  # of the extra `local`; readers of a remote server do without

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f" (process {connection.pid}, {psutil.Process(connection.pid).name()})" if connection.pid else ""
    except (psutil.Error, OSError):
        pass
    return ""


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:port now; lingering connections do not count."""
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
    """Check that all ports are free. `ports`: setting -> (server, port).

    Raises StackError that names every port in use and its setting.
    """
    taken = [
        f"port {port} for {server} is in use{holder(port)}; set {setting} to a free one"
        for setting, (server, port) in ports.items()
        if not is_free(port)
    ]
    if taken:
        raise StackError("\n".join(taken))
    numbers = [port for _, port in ports.values()]
    if len(set(numbers)) < len(numbers):
        raise StackError(
            "two ports of the local stack are the same: " + ", ".join(f"{s}={p}" for s, (_, p) in ports.items())
        )
