"""Measurement of one pair: round trips of small messages, then as many bytes as pass for a moment, each way."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

from drumline.producers.pairs.acceptor import Acceptor
from drumline.producers.pairs.channel import Channel, connect

#: Length of a transfer, and its begin that is not counted: TCP starts slowly; s. Most bytes of it.
SPAN_S, WARM_S, MOST_BYTES = 0.3, 0.06, 1 << 28
#: Round trips, of which the fastest counts: the others have waited for a processor.
TRIPS = 20
#: What each end buffers: more than a path within a cluster holds, and no second of a slow one.
BUFFER = 1 << 20
#: Longest time of a pair in a round; s. A lost packet of a handshake is sent again after one.
ROUND_S = 5.0
_POLL_S, _CHUNK = 0.05, 1 << 18


@dataclass(frozen=True, slots=True)
class End:
    """Holds what one end of a pair measured.

    Attributes:
        received: bytes a second that came in; 0 = none, -1 = not measured.
        trip_s: fastest round trip; -1 = not measured.
        problem: what failed; "" = nothing.
    """

    received: float = -1.0
    trip_s: float = -1.0
    problem: str = ""


def measure_as_listener(acceptor: Acceptor, round_id: str, until: float) -> End:
    """Measure with the peer that connects. Two connections: its data comes in over one, this host's goes out next."""
    received = -1.0
    try:
        first = _accepted(acceptor, f"{round_id} in", until)
        for _ in range(TRIPS):
            first.send({"trip": first.receive(until)["trip"]}, until)
        received = _receive(first, until)
        second = _accepted(acceptor, f"{round_id} out", until)
        _pour(second, until)
        return End(received)
    except (OSError, ValueError, KeyError) as error:
        return End(received, problem=_text(error))


def measure_as_connector(address: str, port: int, secret: bytes, round_id: str, until: float) -> End:
    """Measure with the peer that listens."""
    trip_s = received = -1.0
    try:
        first = _connected(address, port, secret, f"{round_id} in", until)
        trips = []
        for number in range(TRIPS):
            begin = time.perf_counter()
            first.send({"trip": number}, until)
            first.receive(until)
            trips.append(time.perf_counter() - begin)
        trip_s = min(trips)
        _pour(first, until)
        second = _connected(address, port, secret, f"{round_id} out", until)
        received = _receive(second, until)
        return End(received, trip_s)
    except (OSError, ValueError, KeyError) as error:
        return End(received, trip_s, _text(error))


def _text(error: BaseException) -> str:
    return getattr(error, "strerror", "") or str(error) or type(error).__name__


def _accepted(acceptor: Acceptor, purpose: str, until: float) -> Channel:
    """Return the peer's connection for a purpose; those of an earlier round, which its peer left, are closed."""
    while True:
        channel = acceptor.accept(until)
        try:
            if channel.receive(until).get("purpose") == purpose:
                channel.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return channel
        except (ConnectionError, ValueError):
            pass
        channel.drop()


def _connected(address: str, port: int, secret: bytes, purpose: str, until: float) -> Channel:
    channel = connect(address, port, secret, until, retry=True)
    channel.send({"purpose": purpose}, until)
    return channel


def _receive(channel: Channel, until: float) -> float:
    """Return bytes a second that come in within SPAN_S, and reset the connection: so what is queued takes no time."""
    try:
        channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        channel.send({"begin": 1}, until)
        buffer = bytearray(_CHUNK)
        begin = time.perf_counter()
        end, total, warm = begin + SPAN_S, 0, (0.0, 0)
        while (now := time.perf_counter()) < end and total < MOST_BYTES:
            channel.socket.settimeout(end - now)
            try:
                got = channel.socket.recv_into(buffer)
            except TimeoutError:
                break
            if not got:
                break
            total += got
            if not warm[1] and (time.perf_counter() - begin >= WARM_S or total >= MOST_BYTES // 8):
                warm = time.perf_counter(), total
        span_s = time.perf_counter() - (warm[0] or begin)
        return max(total - warm[1], 0) / max(span_s, 1e-6)
    finally:
        channel.drop()


def _pour(channel: Channel, until: float) -> None:
    """Send until the other end, once it has begun, resets the connection."""
    try:
        channel.receive(until)
        channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        data, until = bytes(_CHUNK), min(until, time.monotonic() + 4 * SPAN_S)
        channel.socket.settimeout(_POLL_S)
        while time.monotonic() < until:
            try:
                channel.socket.send(data)
            except TimeoutError:
                continue
            except ConnectionError:
                return
    finally:
        channel.drop()
