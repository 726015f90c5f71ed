"""Requests the state of a job from NCCL's RAS: a text protocol on a local TCP port (NCCL 2.28.7 and later)."""

from __future__ import annotations

import socket
import time

from drumline.infra.runtime.deadlines import receive
from drumline.producers.ras.report import RasReport, json_values, ras_report

#: Time that RAS may collect from the job's other hosts, as `ncclras` has it; it then answers with what it has; s.
COLLECT_S = 5
#: Time for all of a request. RAS answers from a thread of its own within COLLECT_S, and is stopped with its process; s.
MOST_S = 15.0
#: Most bytes of an answer: 350 a rank and communicator, so 16,384 ranks in two.
MOST_BYTES = 12 << 20
#: Most values of an answer: some 25 a rank and communicator. Decoded they take up to 100 bytes each for a moment.
MOST_VALUES = 1_000_000
#: Most bytes of a line that answers a request.
MOST_LINE = 256
#: What comes before the state is requested, and how its answer begins.
REQUESTS = (("CLIENT PROTOCOL 2", "SERVER PROTOCOL"), (f"TIMEOUT {COLLECT_S}", "OK"), ("SET FORMAT json", "OK"))


class NoRas(Exception):
    """Nobody listens, or a version of NCCL that does not speak JSON."""


class NoAnswer(Exception):
    """RAS listens and does not answer in time, or with something else; the message states which."""


def request_status(address: tuple[str, int], most_s: float = MOST_S) -> RasReport:
    """Return what RAS states of its job. Blocks for `most_s`, s. Raises NoRas, NoAnswer."""
    until = time.monotonic() + most_s
    try:
        peer = socket.create_connection(address, timeout=most_s)
    except OSError as error:
        raise NoRas(str(error)) from None
    with peer:
        try:
            for request, wanted in REQUESTS:
                peer.sendall(f"{request}\n".encode())
                if not (line := _line(peer, until)).startswith(wanted):
                    raise NoRas(f"it answers {request!r} with {line!r}")
            peer.sendall(b"VERBOSE STATUS\n")
            values = json_values(_rest(peer, until), MOST_VALUES)
            return ras_report(values if isinstance(values, dict) else {})
        except (OSError, ValueError, RecursionError) as error:  # a timeout is an OSError
            raise NoAnswer(str(error) or type(error).__name__) from None


def _line(peer: socket.socket, until: float) -> str:
    """Return an answer of one line: RAS sends nothing behind it before the next request."""
    line = b""
    while not line.endswith(b"\n") and len(line) < MOST_LINE and (more := receive(peer, MOST_LINE, until)):
        line += more
    return line.decode(errors="replace").strip()[:MOST_LINE]


def _rest(peer: socket.socket, until: float) -> bytes:
    """Return all until the other end closes. Raises ValueError for more than MOST_BYTES."""
    answer = bytearray()
    while more := receive(peer, 1 << 16, until):
        answer += more
        if len(answer) > MOST_BYTES:
            raise ValueError(f"an answer of more than {MOST_BYTES >> 20} MiB")
    return bytes(answer)
