"""The host at which all others register: it begins each round, collects what pairs measured, and sends the result."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from drumline.producers.pairs.acceptor import Acceptor
from drumline.producers.pairs.channel import Channel
from drumline.producers.pairs.evaluation import PairResult, evaluate, pairs_again
from drumline.producers.pairs.measurement import ROUND_S
from drumline.producers.pairs.roster import RANK_HOST
from drumline.producers.pairs.tournament import Pair, chosen_rounds

#: Longest time of a message to or from a host beside its measurement; s.
MESSAGE_S = 2.0


@dataclass
class _Host:
    """A host that registered: its connection, and where it listens."""

    channel: Channel
    address: str
    port: int


class Coordinator(threading.Thread):
    """Serves one check; who starts it calls `join`. `names`: of the hosts. `wait_s`: how long it waits for all."""

    def __init__(self, listener: socket.socket, secret: bytes, names: Sequence[str], wait_s: float) -> None:
        super().__init__(name="pairs", daemon=True)
        self._acceptor, self._secret = Acceptor(listener, secret), secret
        self._names, self._wait_s = list(names), wait_s
        self._hosts: dict[int, _Host] = {}
        self._missing: dict[int, str] = {}
        self._results: dict[Pair, PairResult] = {}

    def run(self) -> None:
        """Wait for the hosts, let them measure, and send each the result."""
        try:
            self._register(time.monotonic() + self._wait_s)
            present = sorted(self._hosts)
            begin = time.monotonic()
            seed = int.from_bytes(hashlib.sha256(self._secret + str(time.time_ns()).encode()).digest()[:4], "big")
            rounds = chosen_rounds(len(present), seed)
            for number, places in enumerate(rounds):
                self._round(f"r{number}", [(present[a], present[b]) for a, b in places])
            again = pairs_again(list(self._results.values()))
            for number, pair in enumerate(again):
                self._round(f"a{number}", [pair])
            self._send_result(len(rounds) + len(again), time.monotonic() - begin)
        finally:
            self._acceptor.close()
            for host in self._hosts.values():
                host.channel.close()

    def _register(self, until: float) -> None:
        while len(self._hosts) < len(self._names):
            try:
                channel = self._acceptor.accept(until)
            except TimeoutError:
                break
            try:
                message = channel.receive(time.monotonic() + MESSAGE_S)
                index, name = int(message["index"]), str(message["name"])
                if not 0 <= index < len(self._names) or index in self._hosts:
                    channel.send({"error": f"host {index} of {len(self._names)} has registered already"}, until)
                    raise ValueError(index)
                if self._names[index].startswith(RANK_HOST):  # torchrun names no hosts
                    self._names[index] += f" ({name})"
                self._hosts[index] = _Host(channel, str(message["address"]), int(message["port"]))
            except (OSError, ValueError, KeyError):
                channel.close()
        for index in range(len(self._names)):
            if index not in self._hosts:
                self._missing[index] = f"did not come within {self._wait_s:.0f} s"

    def _round(self, round_id: str, wanted: Sequence[Pair]) -> None:
        pairs = [pair for pair in wanted if all(self._is_present(index) for index in pair)]
        for first, second in pairs:
            self._send(first, {"round": round_id, "listens": True})
            peer = self._hosts[first]
            self._send(second, {"round": round_id, "address": peer.address, "port": peer.port})
        until = time.monotonic() + ROUND_S + MESSAGE_S
        for first, second in pairs:
            ends = self._receive(first, until), self._receive(second, until)
            if not all(map(self._is_present, (first, second))):
                continue  # it is missing from now on: nothing is known of this pair
            forth, back = (float(end.get("received", -1.0)) for end in reversed(ends))
            problem = next((str(end["problem"]) for end in ends if end.get("problem")), "")
            result = PairResult(first, second, forth, back, float(ends[1].get("trip_s", -1.0)), problem)
            known = self._results.get((first, second))
            self._results[first, second] = known.better(result) if known else result

    def _is_present(self, index: int) -> bool:
        return index not in self._missing

    def _send(self, index: int, message: Mapping[str, Any]) -> None:
        self._try(index, lambda channel: channel.send(message, time.monotonic() + MESSAGE_S))

    def _receive(self, index: int, until: float) -> dict[str, Any]:
        return self._try(index, lambda channel: channel.receive(until)) or {}

    def _try(self, index: int, action: Callable[[Channel], Any]) -> Any:
        if self._is_present(index):
            try:
                return action(self._hosts[index].channel)
            except (OSError, ValueError):
                self._missing[index] = "came, and then did not answer"
        return None

    def _send_result(self, rounds: int, seconds: float) -> None:
        pairs = list(self._results.values())
        findings = evaluate(pairs, self._missing, self._names)
        short = {"findings": [asdict(finding) for finding in findings], "names": self._names, "rounds": rounds}
        short |= {"seconds": round(seconds, 2)}
        for index in self._hosts:
            self._send(index, short)
        for index in self._hosts:  # a link that loses large messages loses these only
            self._send(index, {"pairs": [asdict(pair) for pair in pairs]})
