"""Reading from sockets until a time, however many pieces an answer comes in. Times are those of time.monotonic(), s."""

from __future__ import annotations

import socket
import time


def seconds_left(until: float) -> float:
    """Return the seconds until a time. Raises TimeoutError where it has passed."""
    if (seconds := until - time.monotonic()) <= 0:
        raise TimeoutError("timed out")
    return seconds


def receive(connection: socket.socket, most: int, until: float) -> bytes:
    """Return the next bytes, at most `most`; b"" at the end. Raises OSError, of which TimeoutError."""
    connection.settimeout(seconds_left(until))
    return connection.recv(most)
