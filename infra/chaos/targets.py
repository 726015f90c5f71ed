"""The targets of kills and halts, and the groups whose progress shows that they have recovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Signal = Literal["kill", "stop"]
#: `--signal` -> what is sent. stop: SIGSTOP, and SIGCONT after a while.
SIGNALS: dict[str, tuple[Signal, ...]] = {"kill": ("kill",), "stop": ("stop",), "both": ("kill", "stop")}

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
}
#: Parts of which all that run are meant where `--kill` names the first: broker is each of three.
BROKERS = ("broker", "broker2", "broker3")
PARTS |= dict.fromkeys(BROKERS, PARTS["broker"])
#: Parts that the chaos run starts; the others run under the local stack's supervisor.
PROGRAMS = {
    "sink": ("sink",),
    "second-sink": ("sink", "--instance", "chaos-2"),
    "worker": ("stream",),
    "second": ("stream", "--instance", ""),
    "agent": ("agent",),
}
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
        """Return the name as in `--kill`, with "stop" for a halt."""
        return "+".join(self.parts) + (" stop" if self.signal == "stop" else "")

    @property
    def has_broker(self) -> bool:
        """Return whether a broker is among the parts."""
        return not set(BROKERS).isdisjoint(self.parts)

    @property
    def stalls(self) -> frozenset[str]:
        """Return the groups that make no progress without these parts."""
        return frozenset(group for part in self.parts for group in PARTS[part])


def targets(text: str, signals: Sequence[Signal] = ("kill",), brokers: int = 1) -> list[KillTarget]:
    """Parse a list such as "sink,sink+engine,worker"; each target comes once a signal. Raises ValueError.

    Of several brokers, "broker" is every one of them, each a target.
    """
    existing = [part for part in PARTS if part not in BROKERS[brokers:]]
    chosen = []
    for name in text.split(","):
        parts = tuple(dict.fromkeys(part.strip() for part in name.split("+")))
        for part in parts:
            if part not in existing:
                raise ValueError(f"no target is called {part!r}; there are {', '.join(existing)}, or A+B for both")
        wanted = [(broker,) for broker in BROKERS[:brokers]] if parts == ("broker",) else [parts]
        chosen += [KillTarget(names, signal) for names in wanted for signal in signals]
    return list(dict.fromkeys(chosen))
