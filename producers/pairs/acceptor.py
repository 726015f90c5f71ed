"""Acceptance of connections whose other end has the secret; those that prove it wait for no stranger."""

from __future__ import annotations

import selectors
import socket
import time
from types import TracebackType
from typing import cast

from drumline.infra.runtime.deadlines import seconds_left
from drumline.producers.pairs.channel import PROOF_S, Channel

#: Most connections that prove at once; of more, the oldest is dropped: strangers cannot fill it for long.
MOST_PROVING = 256


class Acceptor:
    """Accepts over a socket that listens, which it closes. One thread calls it."""

    def __init__(self, listener: socket.socket, secret: bytes) -> None:
        self.listener = listener
        self._secret = secret
        self._proving: dict[Channel, tuple[bytes, float]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Acceptor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def accept(self, until: float) -> Channel:
        """Return the next connection that has the secret; others are closed. Raises TimeoutError."""
        while True:
            for key, _ in self._selector.select(min(seconds_left(until), PROOF_S / 10)):
                if key.data is None:
                    self._greet()
                elif self._is_proven(channel := cast("Channel", key.data)):
                    return channel
            now = time.monotonic()
            for channel in [channel for channel, (_, end) in self._proving.items() if end < now]:
                self._forget(channel)
                channel.drop()

    def close(self) -> None:
        """Close the socket, and the connections that have not proved the secret."""
        for channel in list(self._proving):
            self._forget(channel)
            channel.drop()
        self._selector.close()
        self.listener.close()

    def _greet(self) -> None:
        self.listener.settimeout(0)
        try:
            channel = Channel(self.listener.accept()[0])
        except OSError:  # it has gone again
            return
        try:
            nonce = channel.greet()
        except OSError:
            channel.drop()
            return
        if len(self._proving) >= MOST_PROVING:
            oldest = next(iter(self._proving))
            self._forget(oldest)
            oldest.drop()
        self._proving[channel] = nonce, time.monotonic() + PROOF_S
        self._selector.register(channel.socket, selectors.EVENT_READ, channel)

    def _is_proven(self, channel: Channel) -> bool:
        if channel not in self._proving:  # it was dropped for a later one
            return False
        try:
            if not channel.is_proven(self._secret, self._proving[channel][0]):
                return False
        except PermissionError:
            self._forget(channel)
            channel.close()
            return False
        except (OSError, ValueError):
            self._forget(channel)
            channel.drop()
            return False
        self._forget(channel)
        return True

    def _forget(self, channel: Channel) -> None:
        del self._proving[channel]
        self._selector.unregister(channel.socket)
