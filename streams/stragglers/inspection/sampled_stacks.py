"""The stacks of suspect ranks and of their peers, in a store of bytes, and the inspections that both together are.

Key: i|run_key.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from drumline.schemas.batch import Batch
from drumline.streams.core.records import NO_ROWS, key, pack_rows, unpack_rows
from drumline.streams.stragglers.inspection.comparison import MainThread, difference

#: `verdict` and `role` of a suspect, and `role` of its peer, in gpu.stack.v1; a test holds them equal to the agent's.
SUSPECT, PEER = "suspect", "peer"
#: Inspections that wait for a process, and those that are kept: a job has one in ten minutes.
MOST_OPEN, MOST_KEPT = 4, 8


@dataclass(frozen=True, slots=True)
class Inspection:
    """Holds what the stacks of a suspect rank and its peer showed.

    Attributes:
        rank, peer: ranks.
        first_step: of the window that asked for it.
        at, share, peer_share, chance: see `StackDifference`.
    """

    rank: int
    peer: int
    first_step: int
    at: str
    share: float
    peer_share: float
    chance: float


class SampledStacks:
    """Keeps the stacks and inspections of one run. `inspections`: the newest ones, oldest first."""

    __slots__ = ("_key", "_offset", "_open", "inspections", "store")

    def __init__(self, store: MutableMapping[str, bytes], run_key: str) -> None:
        self.store, self._key = store, key("i", run_key)
        self._offset = -1
        self._open: dict[tuple[int, int], dict[int, MainThread]] = {}  # suspect, first step -> rank -> its samples
        self.inspections: list[Inspection] = []

    def apply(self, batch: Batch, offset: int) -> Inspection | None:
        """Apply a batch and return the inspection that it completes, if any. One that was applied changes nothing."""
        envelope = batch.envelope
        if envelope["verdict"] != SUSPECT or offset <= self._offset:
            return None
        rank, suspect = int(envelope["rank"]), int(envelope["named_rank"])
        if envelope["role"] != (SUSPECT if rank == suspect else PEER):
            return None
        about = suspect, int(envelope["first_step"])
        ranks = self._open.setdefault(about, {})
        if len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]
        is_main = np.flatnonzero(batch.columns["is_main"])
        stacks = zip(batch.strings("stack", "stacks")[is_main].tolist(), batch.columns["samples"][is_main].tolist(),
                     strict=True)  # fmt: skip
        ranks.setdefault(rank, MainThread()).add(int(envelope["time_ns"]), int(envelope["samples_total"]), stacks)
        completed = self._completed(about, ranks)
        if completed is not None:
            self.inspections = [*self.inspections, completed][-MOST_KEPT:]
        self._offset = offset
        self._write()
        return completed

    def _completed(self, about: tuple[int, int], ranks: dict[int, MainThread]) -> Inspection | None:
        suspect, first_step = about
        peer = next((rank for rank in ranks if rank != suspect), -1)
        if peer < 0 or suspect not in ranks or not (ranks[suspect].is_complete and ranks[peer].is_complete):
            return None
        del self._open[about]
        result = difference(ranks[suspect], ranks[peer])
        return None if result is None else Inspection(suspect, peer, first_step, **asdict(result))

    def _write(self) -> None:
        waiting = [
            [*about, {str(rank): asdict(of) for rank, of in ranks.items()}] for about, ranks in self._open.items()
        ]
        head: dict[str, Any] = {"open": waiting, "inspections": [asdict(of) for of in self.inspections]}
        self.store[self._key] = pack_rows(self._offset, head, np.zeros(0, NO_ROWS))

    def restore(self) -> None:
        """Read what is stored."""
        record = unpack_rows(self.store[self._key], NO_ROWS)
        self._offset, head = record.offset, record.head
        self._open = {
            (suspect, first): {int(rank): MainThread(**of) for rank, of in ranks.items()}
            for suspect, first, ranks in head["open"]
        }
        self.inspections = [Inspection(**of) for of in head["inspections"]]

    def forget(self) -> None:
        """Delete all of the run."""
        self.store.pop(self._key, None)
