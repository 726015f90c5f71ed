"""Jobs of many ranks: their parallel layout, the schedule of their pipeline, and what slows a rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

FORWARD, BACKWARD = "forward", "backward"


@dataclass(frozen=True)
class World:
    """A job. Ranks count tensor, then data, then pipeline, as Megatron's do.

    Attributes:
        expert: ranks of the data dimension that exchange tokens; divides `data`.
        weights: work of each stage, () = equal.
        tied_embeddings: the first and the last stage share an all-reduce.
        loss_all_reduce: the last stage averages its loss over the data dimension.
        norm_all_reduce: all ranks meet once at the end of a step, for the norm of the gradients.
        table: recorded job that durations are drawn from (durations.py).
        jitter: spread of a pass beyond the recorded one, relative.
        kernels: rank -> its kernels over those of its peers; by design, without more time.
    """

    pipeline: int = 1
    data: int = 1
    tensor: int = 1
    expert: int = 1
    microbatches: int = 8
    weights: tuple[float, ...] = ()
    tied_embeddings: bool = False
    loss_all_reduce: bool = False
    norm_all_reduce: bool = False
    table: str = "AR"
    jitter: float = 0.0
    kernels: tuple[tuple[int, float], ...] = ()
    pass_ns: int = 20_000_000
    transfer_ns: int = 100_000

    @property
    def ranks(self) -> int:
        return self.pipeline * self.data * self.tensor

    def weight(self, stage: int) -> float:
        return self.weights[stage] if self.weights else 1.0

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return (stage, index in the data dimension, index in the tensor dimension)."""
        return rank // (self.data * self.tensor), rank // self.tensor % self.data, rank % self.tensor


class Slowed(NamedTuple):
    """A rank whose passes take `factor` times as long in steps first..last.

    `kind`: compute (its GPU is slow), work (it has as many more kernels), or host (its GPU idles before each pass).
    """

    rank: int
    kind: str
    factor: float
    first: int = 0
    last: int = 1 << 30

    def hits(self, step: int) -> bool:
        return self.first <= step <= self.last


class Message(NamedTuple):
    """Activations or gradients of one batch. `source`, `target`: stages."""

    source: int
    target: int
    name: str
    batch: int


class Pass(NamedTuple):
    """A forward or backward pass of one batch."""

    name: str
    batch: int


class Exchange(NamedTuple):
    """Sends and receives that are launched together, and end together."""

    sent: tuple[Message, ...]
    received: tuple[Message, ...]


def schedule(world: World, stage: int) -> list[Pass | Exchange]:
    """Return what a stage does in a step before gradients are reduced: one forward, one backward (1F1B)."""
    return [part for part in _schedule(world, stage) if isinstance(part, Pass) or part.sent or part.received]


def _schedule(world: World, stage: int) -> Iterator[Pass | Exchange]:
    last, batches = world.pipeline - 1, world.microbatches
    early = min(last - stage, batches)

    def messages(source: int, target: int, name: str, batch: int) -> tuple[Message, ...]:
        inside = 0 <= source <= last and 0 <= target <= last and batch < batches
        return (Message(source, target, name, batch),) if inside else ()

    def sent(name: str, batch: int) -> tuple[Message, ...]:
        return messages(stage, stage + (1 if name == FORWARD else -1), name, batch)

    def received(name: str, batch: int) -> tuple[Message, ...]:
        return messages(stage - (1 if name == FORWARD else -1), stage, name, batch)

    for batch in range(early):
        yield Exchange((), received(FORWARD, batch))
        yield Pass(FORWARD, batch)
        yield Exchange(sent(FORWARD, batch), ())
    yield Exchange((), received(FORWARD, early))
    for batch in range(batches - early):
        yield Pass(FORWARD, early + batch)
        yield Exchange(sent(FORWARD, early + batch), received(BACKWARD, batch))
        yield Pass(BACKWARD, batch)
        yield Exchange(sent(BACKWARD, batch), received(FORWARD, early + batch + 1))
    for batch in range(batches - early, batches):
        yield Exchange((), received(BACKWARD, batch))
        yield Pass(BACKWARD, batch)
        yield Exchange(sent(BACKWARD, batch), ())
