"""Connections of a check of pairs: both ends prove that they have the secret, then exchange lines of JSON.

Nothing is encrypted. A message is a line; what is no line of JSON, or too long, ends the connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from drumline.infra.runtime.deadlines import receive, seconds_left

#: Bytes of a line before the other end has proved the secret, and after: all pairs of a thousand hosts in ten rounds.
PROOF_BYTES, LINE_BYTES = 256, 1 << 22
#: Longest time of a proof; s. Others prove meanwhile.
PROOF_S = 2.0
#: Time between two tries to connect; s.
RETRY_S = 0.1
#: Least characters of a secret.
LEAST_SECRET = 16


class Channel:
    """Sends and receives messages over a socket, which it closes. `until` is a time of time.monotonic()."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._rest = b""

    def send(self, message: Mapping[str, Any], until: float) -> None:
        """Send a message. Raises OSError."""
        self._send_line(json.dumps(message, separators=(",", ":")).encode(), until)

    def receive(self, until: float) -> dict[str, Any]:
        """Return the next message. Raises OSError, of which TimeoutError, and ValueError for what is none."""
        message = json.loads(self._line(until, LINE_BYTES))
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def drop(self) -> None:
        """Close the socket at once: what is in its queues is discarded, and the other end sees a reset."""
        with suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def prove(self, secret: bytes) -> None:
        """Prove the secret to who accepts, and check its proof. Raises PermissionError, OSError or ValueError."""
        until, nonce = time.monotonic() + PROOF_S, secrets.token_hex(16).encode()
        other = self._line(until, PROOF_BYTES)
        self._send_line(nonce + b" " + _proof(secret, b"connect", other, nonce), until)
        _check(self._line(until, PROOF_BYTES), secret, b"accept", other, nonce)

    def greet(self) -> bytes:
        """Send a number to who connected, and return it: the proof is of that number. Raises OSError."""
        nonce = secrets.token_hex(16).encode()
        self._send_line(nonce, time.monotonic() + PROOF_S)
        return nonce

    def is_proven(self, secret: bytes, nonce: bytes) -> bool:
        """Read what is in, and answer a proof that is complete. Raises PermissionError, OSError or ValueError."""
        self._read(time.monotonic() + PROOF_S)
        if b"\n" not in self._rest and len(self._rest) <= PROOF_BYTES:
            return False
        until = time.monotonic() + PROOF_S
        other, _, proof = self._line(until, PROOF_BYTES).partition(b" ")
        try:
            _check(proof, secret, b"connect", nonce, other)
        except PermissionError:
            self._send_line(b"", until)
            raise
        self._send_line(_proof(secret, b"accept", nonce, other), until)
        return True

    def _send_line(self, line: bytes, until: float) -> None:
        self.socket.settimeout(seconds_left(until))
        self.socket.sendall(line + b"\n")

    def _line(self, until: float, most: int) -> bytes:
        while b"\n" not in self._rest:
            if len(self._rest) > most:
                raise ValueError("a line is too long")
            self._read(until)
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _read(self, until: float) -> None:
        got = receive(self.socket, 1 << 16, until)
        if not got:
            raise ConnectionResetError("the other end closed the connection")
        self._rest += got


def key_of(secret: bytes, job: str, names: Iterable[str]) -> bytes:
    """Return the key of one check: participants of another job, or of other hosts, do not have it."""
    return hmac.new(secret, "\n".join((job, *sorted(names))).encode(), hashlib.sha256).digest()


def _proof(secret: bytes, side: bytes, nonce: bytes, other: bytes) -> bytes:
    return hmac.new(secret, b"drumline pairs 1 " + side + nonce + b" " + other, hashlib.sha256).hexdigest().encode()


def _check(proof: bytes, *of: bytes) -> None:
    if not hmac.compare_digest(proof, _proof(*of)):
        raise PermissionError("the other end has another secret, job or list of hosts")


def listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on one address of this host. `port`: 0 = any. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)


def connect(address: str, port: int, secret: bytes, until: float, retry: bool = False) -> Channel:
    """Return a connection to who has the secret. `retry`: until the other end listens.

    Raises PermissionError for another secret, else OSError.
    """
    while True:
        try:
            channel = Channel(socket.create_connection((address, port), seconds_left(until)))
            try:
                channel.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel.prove(secret)
                return channel
            except BaseException:
                channel.drop()
                raise
        except PermissionError:
            raise
        except (OSError, ValueError) as error:
            if not retry or time.monotonic() + RETRY_S >= until:
                raise error if isinstance(error, OSError) else ConnectionError(str(error)) from None
            time.sleep(RETRY_S)
