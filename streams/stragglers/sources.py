"""The sources of a run: its ranks and communicators, their progress, and which of them count as silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeVar

from drumline.streams.core.frontier import Frontier

Name = TypeVar("Name", int, str)


class Place(NamedTuple):
    """Names the host and the GPU of a rank; empty = unknown."""

    host: str = ""
    gpu_uuid: str = ""


NOWHERE = Place()


@dataclass(slots=True)
class Source:
    """Tracks a rank or a communicator of a run.

    Attributes:
        complete: all its steps up to this one have arrived.
        seen_ns: worker's clock at its last batch.
        moved_ns: worker's clock when `complete` last grew.
        stuck: `moved_ns` is longer ago than the stall timeout.
        silent: it is stuck, or sent no batch for longer than `idle_ns`. No window waits for it.
        place: host and GPU of a rank.
        steps_from: origin of a rank's step numbers, as gpu.step.v1 has it.
    """

    complete: int = -1
    seen_ns: int = 0
    moved_ns: int = 0
    silent: bool = False
    stuck: bool = False
    place: Place = NOWHERE
    steps_from: str = ""


class Sources:
    """Tracks all sources of one run.

    Attributes:
        frontier: the step that all sources that are not silent have completed.
        first_seen_ns: worker's clock at the first batch, 0 = none since the restart.
        stopped: the detail published for a job whose steps stopped (stalled.py), until a step comes.
    """

    __slots__ = ("communicators", "first_seen_ns", "frontier", "ranks", "stopped")

    def __init__(self) -> None:
        self.ranks: dict[int, Source] = {}
        self.communicators: dict[str, Source] = {}
        self.frontier = Frontier(self)
        self.first_seen_ns = 0
        self.stopped = ""

    def __iter__(self) -> Iterator[Source]:
        return chain(self.ranks.values(), self.communicators.values())

    @property
    def hosts(self) -> dict[int, str]:
        """Return rank -> host."""
        return {rank: source.place.host for rank, source in self.ranks.items()}

    @property
    def places(self) -> dict[int, Place]:
        """Return rank -> host and GPU."""
        return {rank: source.place for rank, source in self.ranks.items()}

    def update_rank(self, rank: int, complete: int, now_ns: int) -> Source:
        """Record a batch of a rank, new or known, and return the rank's source."""
        return self._update(self.ranks, rank, complete, now_ns)

    def update_communicator(self, communicator: str, complete: int, now_ns: int) -> Source:
        """Record a batch of a communicator, new or known, and return the communicator's source."""
        return self._update(self.communicators, communicator, complete, now_ns)

    def _update(self, sources: dict[Name, Source], name: Name, complete: int, now_ns: int) -> Source:
        self.first_seen_ns = self.first_seen_ns or now_ns
        source = sources.get(name)
        is_new, moved = source is None, source is None or complete > source.complete
        if source is None:
            source = sources[name] = Source()
        elif source.silent and (moved or not source.stuck):
            self._wake(now_ns)
            self.frontier.invalidate()
        before, source.complete = source.complete, max(source.complete, complete)
        source.seen_ns = now_ns
        if moved:
            source.moved_ns, source.stuck, self.stopped = now_ns, False, ""
        source.silent = source.stuck
        if is_new:
            self.frontier.add(source.complete)
        else:
            self.frontier.advance(before, source.complete)
        return source

    def _wake(self, now_ns: int) -> None:
        """Mark all silent sources as live: they fell silent together, and one topic may return before another."""
        for other in self:
            if other.silent:
                other.silent, other.stuck, other.seen_ns, other.moved_ns = False, False, now_ns, now_ns
