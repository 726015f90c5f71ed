"""A fake Kafka broker: answers requests for metadata, as version 0.9 did, with the brokers of the test."""

from __future__ import annotations

import socket
import struct
import threading


class FakeBroker:
    """`has_address`: whether the metadata names a broker; a real one, cut off from its controller, names none."""

    def __init__(self, topic: str) -> None:
        self.has_address, self._topic = True, topic
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as requests:
            while head := requests.read(4):
                request = requests.read(*struct.unpack(">i", head))
                correlation = request[4:8]
                body = correlation + self._metadata()
                connection.sendall(struct.pack(">i", len(body)) + body)

    def _metadata(self) -> bytes:
        """Metadata response v0: brokers, then topics with one partition; no leader if there is no broker."""
        broker = struct.pack(">i", 1) + _text("127.0.0.1") + struct.pack(">i", self.port)
        brokers = struct.pack(">i", 1) + broker if self.has_address else struct.pack(">i", 0)
        partition = struct.pack(">hiiii", 0, 0, 1 if self.has_address else -1, 0, 0)
        topics = struct.pack(">ih", 1, 0) + _text(self._topic) + struct.pack(">i", 1) + partition
        return brokers + topics


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
