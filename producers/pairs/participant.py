"""One host's side of a check of pairs: it registers, measures with whom it is sent to, and gets the result."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from drumline.producers.pairs.acceptor import Acceptor
from drumline.producers.pairs.channel import Channel, connect, key_of, listen
from drumline.producers.pairs.coordinator import MESSAGE_S, Coordinator
from drumline.producers.pairs.evaluation import MOST_AGAIN, PairFinding, PairResult
from drumline.producers.pairs.measurement import ROUND_S, measure_as_connector, measure_as_listener
from drumline.producers.pairs.roster import Roster
from drumline.producers.pairs.tournament import ALL_PAIRS


class NoResult(Exception):
    """The check has no result: the first host did not come, or ended."""


class KeyRejected(NoResult):
    """The first host has another secret, or is of another job."""


@dataclass(frozen=True)
class CheckResult:
    """Holds the result for all hosts, as each gets it. `seconds`: of the measurement, without the wait for hosts."""

    names: Sequence[str]
    findings: Sequence[PairFinding]
    rounds: int
    seconds: float
    pairs: Sequence[PairResult] = field(default_factory=list)


def is_local(name: str) -> bool:
    """Return whether a name or address is this host's."""
    try:
        return any(_binds(str(place[4][0])) for place in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except OSError:
        return False


def _binds(address: str) -> bool:
    try:
        listen(address, 0).close()
    except OSError:
        return False
    return True


def check_pairs(roster: Roster, secret: bytes, name: str, port: int, wait_s: float) -> CheckResult:
    """Take part in the check, and coordinate it on the first host. Blocks until there is a result.

    `name`: of this host. `wait_s`: how long hosts are waited for. Raises NoResult, of which KeyRejected; OSError where
    the port cannot be used.
    """
    secret = key_of(secret, roster.job, roster.names)
    coordinator, address = None, roster.coordinator
    if roster.index == 0:
        address = _first_address(roster, port)
        listener = listen(address, port)
        coordinator = Coordinator(listener, secret, roster.names, wait_s)
        coordinator.start()
    try:
        return _take_part(roster, secret, name, (address, port), wait_s)
    except KeyboardInterrupt:
        if coordinator is not None:
            listener.close()
            coordinator = None  # it ends with this process
        raise
    finally:
        if coordinator is not None:
            coordinator.join(MESSAGE_S * len(roster.names))


def _first_address(roster: Roster, port: int) -> str:
    """Return the address of this host that its name has; where that is a loopback, the one towards another host."""
    places = socket.getaddrinfo(roster.coordinator, port, type=socket.SOCK_STREAM)
    address = str(places[0][4][0])
    if not (address.startswith("127.") or address == "::1"):
        return address
    with suppress(OSError):  # torchrun does not name the others
        family, _, _, _, peer = socket.getaddrinfo(roster.names[-1], port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:  # it sends nothing
            probe.connect(peer)
            return str(probe.getsockname()[0])
    return address


def _take_part(roster: Roster, secret: bytes, name: str, place: tuple[str, int], wait_s: float) -> CheckResult:
    first = roster.names[0]
    try:
        channel = connect(*place, secret, time.monotonic() + wait_s, retry=True)
    except PermissionError as error:
        raise KeyRejected(f"{first}: {error}") from None
    except OSError as error:
        raise NoResult(f"{first} did not come within {wait_s:.0f} s: {error.strerror or error}") from None
    rounds = min(max(len(roster.names), 1), ALL_PAIRS) + MOST_AGAIN
    until = time.monotonic() + wait_s + rounds * (ROUND_S + 2 * MESSAGE_S)
    address = str(channel.socket.getsockname()[0])
    try:
        with Acceptor(listen(address, 0), secret) as acceptor:
            port = acceptor.listener.getsockname()[1]
            known = {"index": roster.index, "name": name, "address": address, "port": port}
            channel.send(known, time.monotonic() + MESSAGE_S)
            return _measure(channel, acceptor, secret, until)
    except (OSError, ValueError, KeyError) as error:
        raise NoResult(f"{first} came, but sent no result: {error}") from None
    finally:
        channel.close()


def _measure(channel: Channel, acceptor: Acceptor, secret: bytes, until: float) -> CheckResult:
    """Measure in each round that this host is sent to. Raises NoResult, OSError, ValueError or KeyError."""
    while "findings" not in (message := channel.receive(until)):
        if "error" in message:
            raise NoResult(str(message["error"]))
        round_id, limit = str(message["round"]), time.monotonic() + ROUND_S
        if message.get("listens"):
            end = measure_as_listener(acceptor, round_id, limit)
        else:
            end = measure_as_connector(str(message["address"]), int(message["port"]), secret, round_id, limit)
        channel.send(asdict(end), time.monotonic() + MESSAGE_S)
    return _result(message, channel)


def _result(message: Mapping[str, Any], channel: Channel) -> CheckResult:
    findings = [PairFinding(**{**finding, "hosts": tuple(finding["hosts"])}) for finding in message["findings"]]
    try:
        pairs = [PairResult(**pair) for pair in channel.receive(time.monotonic() + MESSAGE_S)["pairs"]]
    except (OSError, ValueError, KeyError, TypeError):  # the findings are what counts
        pairs = []
    return CheckResult(message["names"], findings, int(message["rounds"]), float(message["seconds"]), pairs)
