"""Connections of browsers: how long one may take to ask and to read, and how many there are."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Time for a request to be complete, and for the browser to read on when an answer fills its buffers; s.
REQUEST_S, WRITE_S = 10.0, 20.0
#: Connections: 500 tabs with two each. Beyond them the connection that waits longest without a request is closed.
MOST_CONNECTIONS = 1_000


class BoundedConnection(H11Protocol):
    """A connection that ends when a request, or the reading of an answer, takes too long; on the server's loop."""

    request_s, write_s, most = REQUEST_S, WRITE_S, MOST_CONNECTIONS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time for the first request; at the limit close another connection that has none."""
        super().connection_made(transport)
        self._request_timer = self.loop.call_later(self.request_s, transport.abort)
        if len(self.connections) > self.most:
            idle = [other for other in self.connections if isinstance(other, BoundedConnection) and other._is_idle()]
            min(idle, key=lambda other: other._idle_since).transport.abort()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request; the time for it runs from its first byte, however many come."""
        super().data_received(data)
        if not self._is_idle():
            self._stop_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_s, self.transport.abort)

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the browser to read the last bytes."""
        self._idle_since = self.loop.time()
        self._stop_request_timer()
        super().on_response_complete()
        if self.transport.is_closing():  # with what is still to be sent
            self.loop.call_later(self.write_s, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a further request, also one that has not read its last answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.write_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the time in which the browser must read on."""
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.write_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on with the answer."""
        super().resume_writing()
        self._stop_write_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers."""
        self._stop_request_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
