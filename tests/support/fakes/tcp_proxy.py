"""A loopback TCP proxy in front of a server, by which a test makes it slow, closed or refusing. Not a test itself."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class Proxy:
    """Listens on `port`, forwards to 127.0.0.1:`target`. The attributes are read for every chunk:
    `delay_s`: wait before each chunk of an answer; `closed`: hang up; `answer`: bytes to send instead of forwarding."""

    def __init__(self, target: int) -> None:
        self.target, self.delay_s, self.closed, self.answer = target, 0.0, False, b""
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self.closed = True
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if self.closed:
                return
            with socket.create_connection(("127.0.0.1", self.target)) as server:
                requests = threading.Thread(target=self._forward, args=(client, server, False), daemon=True)
                requests.start()
                self._forward(server, client, True)

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if answers:
                    time.sleep(self.delay_s)
                if self.closed:
                    break
                if self.answer and not answers:
                    source.sendall(self.answer)
                    break
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
