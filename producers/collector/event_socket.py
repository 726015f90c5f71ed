"""Socket of the collector to its decoder, inside a job that may close it and use its number for a connection."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time

from drumline.producers.ipc.descriptor import file_of


class EventSocket:
    """Wraps one end of a socket pair; nothing is sent to, read from or closed under a number that another file has now.

    Methods may be called from any thread; only `drain` blocks.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self._file = end, file_of(end.fileno())

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._end.fileno()

    @property
    def is_open(self) -> bool:
        """True while the descriptor is this socket."""
        return self._file is not None and file_of(self._end.fileno()) == self._file

    def send(self, message: bytes) -> None:
        """Send a message at once. Raises OSError where that is not possible."""
        if not self.is_open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self._end.send(message)

    def drain(self, until: float) -> None:
        """Send the end, and wait until the other side has closed its own, or until `until` (monotonic)."""
        with contextlib.suppress(OSError):
            while self.is_open:
                self._end.shutdown(socket.SHUT_WR)
                self._end.settimeout(max(until - time.monotonic(), 0.1))
                if not self._end.recv(64):
                    return

    def close(self) -> None:
        """Close the socket; forget a number that is another file's."""
        if self.is_open:
            self._end.close()
        else:
            self._end.detach()


def event_sockets() -> tuple[EventSocket, EventSocket]:
    """Return the collector's end, which never blocks, and the decoder's. Raises OSError."""
    collector_end, decoder_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    collector_end.setblocking(False)
    return EventSocket(collector_end), EventSocket(decoder_end)
