"""The state of one communicator of one run: its ranks' progress, and their collectives of the last steps (chunks.py).

Keys of the store:

- m|chunk|number|communicator|run_key: rows of some ranks, of CHUNK_STEPS steps.
- e|communicator|run_key: the last emitted step and sequence number.
- h|communicator|run_key: the horizon. Rows before it are being deleted value by value, and are incomplete.

The index in memory has the values too, so that they are read without their keys; it is rebuilt by `restore_chunk`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass

import numpy as np

from drumline.streams.core.attempts import Attempt
from drumline.streams.core.frontier import Frontier
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import (
    NO_ROWS,
    as_json,
    key,
    newest_steps,
    pack_rows,
    split_run_key,
    stacked,
    unpack_rows,
)
from drumline.streams.lateness.chunks import Chunks
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW
from drumline.streams.lateness.pieces import CHUNK_STEPS, Piece, cut
from drumline.streams.lateness.received import FromRanks, MemberReport

#: Kinds of keys as a checkpoint writes them (worker/partition_store.py): what was emitted follows the rows of it.
CHECKPOINT_KINDS = "hme"
Store = MutableMapping[str, bytes]


@dataclass(slots=True)
class Member:
    """Tracks one rank of a communicator.

    Attributes:
        complete: its collectives up to this step have arrived.
        seen_ns: worker's clock at its last batch.
        silent: no step waits for it.
        host, gpu_uuid: of its last batch. names: both as items of a JSON array.
    """

    complete: int = -1
    seen_ns: int = 0
    silent: bool = False
    host: str = ""
    gpu_uuid: str = ""
    names: str = '"",""'

    def set_names(self, host: str, gpu_uuid: str) -> None:
        """Set where the rank is; it nearly always stays there."""
        if (host, gpu_uuid) != (self.host, self.gpu_uuid):
            self.host, self.gpu_uuid = host, gpu_uuid
            self.names = as_json([host, gpu_uuid])[1:-1].decode()


class CommunicatorState:
    """Keeps the state of one communicator of a run: the index in memory, and access to the store.

    Attributes:
        attempt: of the run, which it is part of.
        members: rank -> its progress.
        complete: step that all live ranks have completed, -1 before the first; see `CommunicatorStage`.
        silent: it has no live ranks, or waits for more.
        dirty: steps with changes not emitted yet.
        emitted: last step that was emitted as complete.
        sequence: of the next batch.
        horizon: first step that still takes rows.
        check_ns: worker's clock up to which no rank can fall silent.
        first_seen_ns: worker's clock at the first batch, 0 = none yet.
        light: it has light rows.
        chunks: the rows.
        patterns: use of sends and receives -> number of steps with it.
        counts: of the stage; rows for dropped steps are too old.
    """

    __slots__ = (
        *("_deleted_before", "_max_steps", "attempt", "check_ns", "chunks", "communicator", "complete", "counts"),
        *("emitted", "first_seen_ns", "frontier", "horizon", "light", "members", "patterns", "run_key", "sequence"),
        *("dirty", "silent", "store", "world_size"),
    )

    def __init__(self, store: Store, attempt: Attempt, communicator: str, max_steps: int, counts: InputCounts) -> None:
        self.store, self.attempt, self.communicator, self._max_steps = store, attempt, communicator, max_steps
        self.run_key = run_key = attempt.unit
        self.counts = counts
        self.world_size = 0
        self.members: dict[int, Member] = {}
        self.frontier = Frontier(self.members.values())
        self.complete, self.silent = -1, True
        self.dirty: set[int] = set()
        self.emitted, self.sequence, self.horizon = -1, 0, 0
        self.first_seen_ns = self.check_ns = 0
        self.light = False
        self.patterns: Counter[str] = Counter()
        self.chunks = Chunks(store, communicator, run_key)
        self._deleted_before = -1

    @property
    def job(self) -> str:
        """Return its job."""
        return split_run_key(self.run_key)[0]

    @property
    def run(self) -> str:
        """Return its run."""
        return split_run_key(self.run_key)[1]

    @property
    def horizon_key(self) -> str:
        """Return the store's key of the horizon."""
        return key("h", self.communicator, self.run_key)

    def restore_chunk(self, chunk: int, number: int) -> None:
        """Index a value of the store. Its steps are emitted again, as the store does not mark emitted steps."""
        record = unpack_rows(self.store[self.chunks.key_of(chunk, number)], COLLECTIVE_ROW)
        items: dict[int, str] = {}
        for rank, (complete, world_size, host, gpu_uuid) in record.head["ranks"].items():
            items[int(rank)] = as_json([complete, world_size, host, gpu_uuid])[1:-1].decode()
            member = self.members.setdefault(int(rank), Member())
            if complete >= member.complete:
                member.complete = complete
                member.set_names(host, gpu_uuid)
            self.world_size = world_size
        self.chunks.restore(chunk, number, record, items)
        self.first_seen_ns = 1  # long ago: the settling time is over
        self.dirty.update(np.unique(record.rows["step"]).tolist())
        self.light |= bool(record.rows["light"].any())

    def apply(self, received: FromRanks, now_ns: int) -> None:
        """Apply what came of this communicator: of one rank, or of several whose steps are less than the most apart.

        Rows of a rank in a chunk that were applied at this offset or later stay as they are; rows behind the horizon
        are counted.
        """
        self.light |= received.light
        self.first_seen_ns = self.first_seen_ns or now_ns
        items, completing = dict[int, tuple[str, int]](), dict[int, list[int]]()
        for report in received.reports:
            member, rises = self._update_member(report, now_ns)
            items[report.rank] = f"{member.complete},{report.world_size},{member.names}", report.offset
            if rises and report.complete >= self.horizon:
                completing.setdefault(report.complete // CHUNK_STEPS, []).append(report.rank)
        pieces = {piece.chunk: piece for piece in self._bounded(received.pieces)}
        repeated: set[int] = set()
        for chunk in sorted({*pieces, *completing}):
            piece = pieces.get(chunk) or Piece(chunk, {}, set())
            ranks = dict.fromkeys((*piece.rows_of, *completing.get(chunk, ())))
            again = self.chunks.add(chunk, piece.rows_of, {rank: items[rank] for rank in ranks})
            repeated |= again
            self.dirty |= piece.steps_of(again)
        self.counts.duplicates += sum(of.batches for of in received.reports if of.rank in repeated)

    def _update_member(self, report: MemberReport, now_ns: int) -> tuple[Member, bool]:
        """Record what a rank reports; return the rank, and whether it has completed a step."""
        member = self.members.get(report.rank)
        is_new = member is None
        if member is None or member.silent or report.world_size != self.world_size:
            self.check_ns = 0
        self.world_size = report.world_size
        if member is None:
            member = self.members[report.rank] = Member()
        elif member.silent:  # ranks that fell silent together come back together
            for other in self.members.values():
                other.silent, other.seen_ns = False, now_ns if other.silent else other.seen_ns
            self.frontier.invalidate()
        member.seen_ns, member.silent = now_ns, False
        member.set_names(report.host, report.gpu_uuid)
        before, member.complete = member.complete, max(member.complete, report.complete)
        if is_new:
            self.frontier.add(member.complete)
        else:
            self.frontier.advance(before, member.complete)
        return member, member.complete > before

    def mark_silent(self, now_ns: int, idle_ns: int, caught_up: bool) -> None:
        """Mark the ranks that have sent nothing for `idle_ns`, once nothing of them is in Kafka."""
        if now_ns <= self.check_ns:
            return
        for member in self.members.values():
            member.seen_ns = member.seen_ns or now_ns  # restored: silent from now on
            member.silent = member.silent or (caught_up and now_ns - member.seen_ns > idle_ns)
        self.frontier.invalidate()
        oldest_ns = min((member.seen_ns for member in self.members.values() if not member.silent), default=now_ns)
        self.check_ns = oldest_ns + idle_ns

    def _bounded(self, received: list[Piece]) -> list[Piece]:
        """Return the pieces with the rows that may be kept."""
        steps = set[int]().union(*(piece.steps for piece in received))
        if not steps or (min(steps) >= self.horizon and max(steps) - min(steps) < self._max_steps):
            return received
        rows = stacked([rows for piece in received for rows in piece.rows_of.values()])
        kept = newest_steps(rows, self._max_steps)
        kept = kept[kept["step"] >= self.horizon]
        self.counts.too_old += len(rows) - len(kept)
        return cut(kept).get(0, [])

    def drop_before(self, horizon: int) -> None:
        """Delete the chunks that lie wholly before a step.

        The horizon is written first: after a crash in between, the rest of a step must not be emitted.
        """
        horizon = horizon // CHUNK_STEPS * CHUNK_STEPS
        if horizon > self.horizon:
            self.horizon = horizon
            self.store[self.horizon_key] = pack_rows(-1, {"horizon": horizon}, np.zeros(0, NO_ROWS))
        if self._deleted_before < self.horizon:
            self._deleted_before = self.horizon
            self.chunks.drop_before(self.horizon)
            self.dirty = {step for step in self.dirty if step >= self.horizon}
