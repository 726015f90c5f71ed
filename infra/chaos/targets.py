"""The targets of kills, and the groups whose progress shows that they have recovered."""

from __future__ import annotations

from dataclasses import dataclass

#: Part -> groups that make no progress without it: commits of the sink, commits of the worker, records in Kafka.
#: The second worker has no name: its exit and its return move partitions, which those of a named one do not.
PARTS = {
    "sink": ("sink",),
    "engine": ("sink",),
    "worker": ("worker",),
    "second": ("worker",),
    "broker": ("sink", "worker"),
    "agent": ("published",),
}
#: Parts that the chaos run starts; the others run under the local stack's supervisor.
PROGRAMS = {"sink": ("sink",), "worker": ("stream",), "second": ("stream", "--instance", ""), "agent": ("agent",)}
#: Programs that run only if they are targets. With an agent, replays go through a spool.
OPTIONAL = {"second", "agent"}
#: Worker -> instance name in its status file.
STATUSES = {"worker": "chaos", "second": "unnamed@1"}


@dataclass(frozen=True, slots=True)
class KillTarget:
    """Names the parts that are killed at the same moment."""

    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name as in `--kill`."""
        return "+".join(self.parts)

    @property
    def stalls(self) -> frozenset[str]:
        """Return the groups that make no progress without these parts."""
        return frozenset(group for part in self.parts for group in PARTS[part])


def targets(text: str) -> list[KillTarget]:
    """Parse a list such as "sink,sink+engine,worker". Raises ValueError."""
    chosen = []
    for name in text.split(","):
        parts = tuple(part.strip() for part in name.split("+"))
        for part in parts:
            if part not in PARTS:
                raise ValueError(f"no target is called {part!r}; there are {', '.join(PARTS)}, or A+B for both")
        chosen.append(KillTarget(tuple(dict.fromkeys(parts))))
    return list(dict.fromkeys(chosen))
