"""Who feeds a run: its ranks and communicators, how far each has come, and whom nobody waits for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from drumline.streams.core.frontier import Frontier

Name = TypeVar("Name", int, str)


class Place(NamedTuple):
    """Host and GPU of a rank; empty = unknown."""

    host: str = ""
    gpu_uuid: str = ""


NOWHERE = Place()


@dataclass(slots=True)
class Source:
    """A rank or a communicator that feeds the run. `complete`: all its steps up to this one are in. `seen_ns`,
    `moved_ns`: worker's clock when it was last heard, and when `complete` last grew. `stuck`: that is long ago;
    `silent`: it is stuck or not heard any more. `steps_from`: who says where a rank's steps are, as gpu.step.v1 has
    it."""

    complete: int = -1
    seen_ns: int = 0
    moved_ns: int = 0
    silent: bool = False
    stuck: bool = False
    place: Place = NOWHERE
    steps_from: str = ""


class Sources:
    """All of one run. `first_seen_ns`: worker's clock when the first one was heard, 0 = none was since the restart.
    `frontier`: the step that all who are not silent have completed. `stopped`: what was said of a job whose steps
    stopped (stopped.py), until one comes."""

    def __init__(self) -> None:
        self.ranks: dict[int, Source] = {}
        self.communicators: dict[str, Source] = {}
        self.frontier = Frontier(lambda: self)
        self.first_seen_ns = 0
        self.stopped = ""

    def __iter__(self) -> Iterator[Source]:
        return chain(self.ranks.values(), self.communicators.values())

    @property
    def hosts(self) -> dict[int, str]:
        """Rank -> host."""
        return {rank: source.place.host for rank, source in self.ranks.items()}

    @property
    def places(self) -> dict[int, Place]:
        """Rank -> host and GPU."""
        return {rank: source.place for rank, source in self.ranks.items()}

    def rank_heard(self, rank: int, complete: int, now_ns: int) -> Source:
        """A rank says how far it has come; it may be new."""
        return self._heard(self.ranks, rank, complete, now_ns)

    def communicator_heard(self, communicator: str, complete: int, now_ns: int) -> Source:
        """The same of a communicator."""
        return self._heard(self.communicators, communicator, complete, now_ns)

    def _heard(self, sources: dict[Name, Source], name: Name, complete: int, now_ns: int) -> Source:
        self.first_seen_ns = self.first_seen_ns or now_ns
        source = sources.get(name)
        moved = source is None or complete > source.complete
        if source is None or (source.silent and (moved or not source.stuck)):
            if source is not None:
                self._wake(now_ns)
            source = sources.setdefault(name, Source())
            self.frontier.unknown()
        before, source.complete = source.complete, max(source.complete, complete)
        source.seen_ns = now_ns
        if moved:
            source.moved_ns, source.stuck, self.stopped = now_ns, False, ""
        source.silent = source.stuck
        self.frontier.moved(before, source.complete)
        return source

    def _wake(self, now_ns: int) -> None:
        """Who fell silent together comes back together, one topic perhaps long before another."""
        for other in self:
            if other.silent:
                other.silent, other.stuck, other.seen_ns, other.moved_ns = False, False, now_ns, now_ns
