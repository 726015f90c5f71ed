"""Who may be killed, and by whose progress one sees that it works again."""

from __future__ import annotations

from dataclasses import dataclass

#: part -> whose work stands still without it: what the sink commits, what the worker commits, what arrives in Kafka.
#: The second worker has no name: its death and its return move partitions, which those of a named one do not.
PARTS = {
    "sink": ("sink",),
    "engine": ("sink",),
    "worker": ("worker",),
    "second": ("worker",),
    "broker": ("sink", "worker"),
    "agent": ("published",),
}
#: Parts that are programs of the campaign; the others run under the local stack's supervisor.
PROGRAMS = {"sink": ("sink",), "worker": ("stream",), "second": ("stream", "--instance", ""), "agent": ("agent",)}
#: Programs that run only where they are to be killed. With an agent, replays go through a spool.
OPTIONAL = {"second", "agent"}
#: Workers -> what their status is filed under.
STATUSES = {"worker": "chaos", "second": "unnamed@1"}


@dataclass(frozen=True, slots=True)
class Target:
    """What dies together, at the same moment."""

    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.parts)

    @property
    def stalls(self) -> frozenset[str]:
        return frozenset(group for part in self.parts for group in PARTS[part])


def targets(text: str) -> list[Target]:
    """Of "sink,sink+engine,worker". Raises ValueError."""
    found = []
    for name in text.split(","):
        parts = tuple(part.strip() for part in name.split("+"))
        for part in parts:
            if part not in PARTS:
                raise ValueError(f"nobody to kill is called {part!r}; there are {', '.join(PARTS)}, or A+B for both")
        found.append(Target(tuple(dict.fromkeys(parts))))
    return list(dict.fromkeys(found))
