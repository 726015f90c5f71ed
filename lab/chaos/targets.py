"""The targets of disturbances, and the groups whose progress shows that they have recovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from drumline.lab.chaos.disks import LOGS

Signal = Literal["kill", "stop", "full", "step", "rejoin"]
#: `--signal` -> what happens to targets. For a while: stop: a halt (SIGSTOP, SIGCONT). full: the disk of a server, or
#: of all logs, has no free block. step: the clock of a program is ahead or behind. rejoin: a program leaves its group
#: cleanly and joins it again, again and again.
SIGNALS: dict[str, tuple[Signal, ...]] = {
    "kill": ("kill",),
    "stop": ("stop",),
    "both": ("kill", "stop"),
    "full": ("full",),
    "step": ("step",),
    "rejoin": ("rejoin",),
    "all": ("kill", "stop", "full", "step", "rejoin"),
}
#: How a sentence names a disturbance that is over.
ENDED: dict[Signal, str] = {
    "kill": "was killed", "stop": "was halted and woken", "full": "had a full disk", "step": "had a stepping clock",
    "rejoin": "left its group again and again",
}  # fmt: skip

#: Part -> groups that make no progress without it: commits of the sink, commits of the worker, records in Kafka.
#: The second worker has no name: its exit and its return move partitions, which those of a named one do not.
PARTS = {
    "sink": ("sink",),
    "second-sink": ("sink",),
    "engine": ("sink",),
    "worker": ("worker",),
    "second": ("worker",),
    "broker": ("sink", "worker"),
    "agent": ("published",),
    LOGS: (),
}
#: Parts of which all that run are meant where `--kill` names the first: broker is each of three.
BROKERS = ("broker", "broker2", "broker3")
PARTS |= dict.fromkeys(BROKERS, PARTS["broker"])
#: Parts that are brokers chosen at the moment of a kill, of three: the one that has the sinks' commits; any two at
#: once; all in turn, stopped cleanly and each once all replicas are in sync, as an upgrade does.
LEADER, TWO, ROLLING = CHOSEN = ("broker-leader", "two-brokers", "rolling")
PARTS |= dict.fromkeys(CHOSEN, PARTS["broker"])
#: Without two brokers nothing is acknowledged, so a halt of them proves nothing that a kill does not.
ONLY_KILLED = {TWO, ROLLING}
#: Parts whose disk can be full. A spool is left out: what it cannot write is counted as dropped, so that nothing could
#: be compared.
WITH_DISK = {*BROKERS, LEADER, "engine", LOGS}
#: Parts that the chaos run starts; the others run under the local stack's supervisor.
PROGRAMS = {
    "sink": ("sink",),
    "second-sink": ("sink", "--instance", "chaos-2"),
    "worker": ("stream",),
    "second": ("stream", "--instance", ""),
    "agent": ("agent",),
}
#: Programs that are members of a group.
MEMBERS = {"sink", "second-sink", "worker", "second"}
#: Programs that run only if they are targets. With an agent, replays go through a spool.
OPTIONAL = {"second", "second-sink", "agent"}
#: Programs that run wherever something is halted: while one is, its successor takes over.
SUCCESSORS = {"second", "second-sink"}
#: Parts whose death interrupts the storing of ranges.
STORING = {"sink", "second-sink", "engine"}
#: Worker -> instance name in its status file.
STATUSES = {"worker": "chaos", "second": "unnamed@1"}


@dataclass(frozen=True, slots=True)
class KillTarget:
    """Names the parts that are killed, or halted, at the same moment."""

    parts: tuple[str, ...]
    signal: Signal = "kill"

    @property
    def name(self) -> str:
        """Return the name as in `--kill`, with the signal unless it is a kill."""
        return "+".join(self.parts) + ("" if self.signal == "kill" else f" {self.signal}")

    @property
    def lasts(self) -> bool:
        """Return whether the disturbance takes time, and ends by itself."""
        return self.signal != "kill"

    @property
    def has_broker(self) -> bool:
        """Return whether a broker is among the parts."""
        return not {*BROKERS, *CHOSEN}.isdisjoint(self.parts)

    @property
    def stalls(self) -> frozenset[str]:
        """Return the groups that make no progress without these parts."""
        return frozenset(group for part in self.parts for group in PARTS[part])


def targets(text: str, signals: Sequence[Signal] = ("kill",), brokers: int = 1) -> list[KillTarget]:
    """Parse a list such as "sink,sink+engine,worker"; each target comes once a signal. Raises ValueError.

    Of several brokers, "broker" is every one of them, each a target.
    """
    missing = {*BROKERS[brokers:], *(CHOSEN if brokers < len(BROKERS) else ())}
    existing = [part for part in PARTS if part not in missing]
    chosen: list[KillTarget] = []
    for name in text.split(","):
        parts = tuple(dict.fromkeys(part.strip() for part in name.split("+")))
        for part in parts:
            if part not in existing:
                needs = f"{part} needs --brokers {len(BROKERS)}" if part in CHOSEN else f"no target is called {part!r}"
                raise ValueError(f"{needs}; there are {', '.join(existing)}, or A+B for both")
        wanted = [(broker,) for broker in BROKERS[:brokers]] if parts == ("broker",) else [parts]
        fitting = [signal for signal in signals if _fits(signal, {*parts})]
        if not fitting:
            fits = [signal for signal in SIGNALS["all"] if _fits(signal, {*parts})]
            raise ValueError(f"{name} goes with --signal {', '.join(fits) or 'none'}, not with {', '.join(signals)}")
        chosen += [KillTarget(names, signal) for names in wanted for signal in fitting]
    return list(dict.fromkeys(chosen))


def _fits(signal: Signal, parts: set[str]) -> bool:
    """Return whether a signal has a meaning for all of these parts."""
    if signal == "full":
        return parts <= WITH_DISK
    if signal == "step":
        return parts <= PROGRAMS.keys()
    if signal == "rejoin":
        return parts <= MEMBERS
    return LOGS not in parts and (signal == "kill" or ONLY_KILLED.isdisjoint(parts))
