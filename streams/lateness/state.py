"""The state of one communicator of one run: its ranks' collectives of the last steps, in a store of bytes.

Keys of the store:

- m|chunk|rank|communicator|run_key: one rank's rows of CHUNK_STEPS steps.
- e|communicator|run_key: the last emitted step and sequence number.
- h|communicator|run_key: the horizon. Rows before it are being deleted rank by rank, and are incomplete.

A batch rewrites only the chunks that its steps fall in. Rows that follow the stored ones, as nearly all do, are joined
to them as they are. The index in memory has the values too, so that they are read without their keys; it is rebuilt by
`restore_chunk`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.joined.merged import Ints
from drumline.schemas.joined.table import MergedParts
from drumline.streams.core.frontier import Frontier
from drumline.streams.core.input_counts import InputCounts
from drumline.streams.core.records import Rows, key, newest_steps, pack_rows, split_run_key, stacked, unpack_rows
from drumline.streams.lateness.collective_join import COLLECTIVE_ROW, KIND, OTHER, follows, merge, operation_number

#: Steps of a chunk: more of them mean fewer keys, but more bytes rewritten by each batch.
CHUNK_STEPS = 4
#: Kinds of keys as a checkpoint writes them (worker/partition_store.py): what was emitted follows the rows of it.
CHECKPOINT_KINDS = "hme"
#: Value of `source` in gpu.collective.v1 and gpu.step.v1 for rows of the light tier.
NCCL = "nccl"
Store = MutableMapping[str, bytes]
NO_ROWS = np.dtype([("none", "u1")])
_NOTHING = np.zeros(0, COLLECTIVE_ROW)


@dataclass(slots=True)
class Member:
    """Tracks one rank of a communicator.

    Attributes:
        complete: its collectives up to this step have arrived.
        seen_ns: worker's clock at its last batch.
        silent: no step waits for it.
        host, gpu_uuid: of its last batch.
        chunks: number of each stored chunk -> its value.
    """

    complete: int = -1
    seen_ns: int = 0
    silent: bool = False
    host: str = ""
    gpu_uuid: str = ""
    chunks: dict[int, bytes] = field(default_factory=dict)


class MemberReport(NamedTuple):
    """Holds what a rank reports with its rows. `complete`: see `Member`."""

    world_size: int
    host: str
    gpu_uuid: str
    complete: int


def collective_rows(batch: Batch) -> Rows:
    """Return the COLLECTIVE_ROW rows of a gpu.collective.v1 batch that belong to a step."""
    rows = _plain_rows(batch.columns, batch.rows)
    rows["light"] = batch.envelope.get("source") == NCCL
    if len(rows):
        kinds, numbers = _operations(tuple(batch.envelope["operations"]))
        rows["lockstep"], rows["operation"] = kinds[batch.columns["operation"]], numbers[batch.columns["operation"]]
    inside = rows["step"] >= 0
    return rows if inside.all() else rows[inside]


def merged_collective_rows(parts: MergedParts) -> Rows:
    """Return the COLLECTIVE_ROW rows of all parts of a gpu.collective.v1 record, also those that belong to no step."""
    rows = _plain_rows(parts.columns, parts.rows)
    rows["light"] = np.repeat(np.array([source == NCCL for source in parts.text("source")]), parts.counts)
    known = [_operations(tuple(names)) for names in parts.lists("operations")]
    begins = np.cumsum([0, *(len(kinds) for kinds, _ in known[:-1])])  # of each part's operations among all
    operation = parts.columns["operation"] + np.repeat(begins, parts.counts)
    rows["lockstep"] = np.concatenate([kinds for kinds, _ in known])[operation]
    rows["operation"] = np.concatenate([numbers for _, numbers in known])[operation]
    return rows


def _plain_rows(columns: Mapping[str, Array], count: int) -> Rows:
    rows = np.zeros(count, COLLECTIVE_ROW)
    for name in ("step", "ordinal", "bytes", "start_ns", "duration_ns", "covered_ns"):
        rows[name] = columns[name]
    return rows


@lru_cache(1024)
def _operations(names: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    """Return KIND and number of operations."""
    kinds = np.array([KIND.get(name, OTHER) for name in names], "u1")
    return kinds, np.array([operation_number(name) for name in names], "u4")


class CommunicatorState:
    """Keeps the state of one communicator of a run: the index in memory, and access to the store.

    Attributes:
        members: rank -> its progress.
        complete: step that all live ranks have completed, -1 before the first; see `CommunicatorStage`.
        silent: it has no live ranks, or waits for more.
        dirty: steps with changes not emitted yet.
        emitted: last step that was emitted as complete.
        sequence: of the next batch.
        horizon: first step that still takes rows.
        first_seen_ns: worker's clock at the first batch, 0 = none yet.
        light: it has light rows.
        patterns: use of sends and receives -> number of steps with it.
        counts: of the stage; rows for dropped steps are too old.
    """

    def __init__(self, store: Store, run_key: str, communicator: str, max_steps: int, counts: InputCounts) -> None:
        self.store, self.run_key, self.communicator, self._max_steps = store, run_key, communicator, max_steps
        self.counts = counts
        self.job, self.run = split_run_key(run_key)
        self.world_size = 0
        self.members: dict[int, Member] = {}
        self.frontier = Frontier(self.members.values)
        self.complete, self.silent = -1, True
        self.dirty: set[int] = set()
        self.emitted, self.sequence, self.horizon = -1, 0, 0
        self.first_seen_ns = 0
        self.light = False
        self.patterns: Counter[str] = Counter()
        self._deleted_before = -1

    def chunk_key(self, chunk: int, rank: int) -> str:
        """Return the store's key of a chunk of a rank."""
        return key("m", chunk, rank, self.communicator, self.run_key)

    @property
    def horizon_key(self) -> str:
        """Return the store's key of the horizon."""
        return key("h", self.communicator, self.run_key)

    def restore_chunk(self, chunk: int, rank: int) -> None:
        """Index a chunk of the store. Its steps are emitted again, as the store does not mark emitted steps."""
        value = self.store[self.chunk_key(chunk, rank)]
        record = unpack_rows(value, COLLECTIVE_ROW)
        member = self.members.setdefault(rank, Member())
        member.chunks[chunk] = value
        head = record.head
        if int(head["complete"]) >= member.complete:
            member.complete = int(head["complete"])
            member.host, member.gpu_uuid = head["host"], head["gpu_uuid"]
        self.first_seen_ns = 1  # long ago: the settling time is over
        self.world_size = head["world_size"]
        self.dirty.update(np.unique(record.rows["step"]).tolist())
        self.light |= bool(record.rows["light"].any())

    def apply(self, batch: Batch, offset: int, now_ns: int) -> None:
        """Apply a batch. A chunk written at this offset or later stays; rows behind the horizon are counted."""
        envelope = batch.envelope
        self.light |= envelope.get("source") == NCCL
        values = (envelope[name] for name in ("world_size", "host", "gpu_uuid", "complete_step"))
        report = MemberReport(*values)
        self.counts.duplicates += self._apply(int(envelope["rank"]), report, collective_rows(batch), offset, now_ns)

    def apply_merged(self, parts: MergedParts, offsets: Ints, now_ns: int) -> None:
        """Apply all parts of a gpu.collective.v1 record, those of one rank together."""
        rows = merged_collective_rows(parts)
        inside = rows["step"] >= 0  # others belong to no step
        steps = rows["step"][inside]
        spread = int(steps.max() - steps.min()) if len(steps) else 0
        if spread >= self._max_steps:  # each part has its own bounds then
            for part, offset in enumerate(offsets.tolist()):
                self.apply(parts.batch(part), offset, now_ns)
            return
        self.light |= NCCL in parts.text("source")
        sizes, completes = (parts.number(name).tolist() for name in ("world_size", "complete_step"))
        reports_of: dict[int, list[MemberReport]] = {}
        of_parts = zip(sizes, parts.text("host"), parts.text("gpu_uuid"), completes, strict=True)
        for rank, values in zip(parts.number("rank").tolist(), of_parts, strict=True):
            reports_of.setdefault(rank, []).append(MemberReport(*values))
        for rank, reports in reports_of.items():
            taken = inside if len(reports_of) == 1 else inside & (parts.ranks == rank)
            last = reports[-1]._replace(complete=max(part.complete for part in reports))
            is_duplicate = self._apply(rank, last, rows[taken], int(offsets[-1]), now_ns)
            self.counts.duplicates += len(reports) * is_duplicate

    def _apply(self, rank: int, report: MemberReport, received: Rows, offset: int, now_ns: int) -> bool:
        """Apply rows of a rank, and return whether some chunk had them before."""
        self.world_size = int(report.world_size)
        self.first_seen_ns = self.first_seen_ns or now_ns
        member = self.members.get(rank)
        is_new = member is None
        if member is None:
            member = self.members[rank] = Member()
        elif member.silent:  # ranks that fell silent together come back together
            for other in self.members.values():
                other.silent, other.seen_ns = False, now_ns if other.silent else other.seen_ns
            self.frontier.invalidate()
        member.seen_ns, member.silent = now_ns, False
        member.host, member.gpu_uuid = report.host, report.gpu_uuid
        rows, steps = received, set(received["step"].tolist())
        if steps and (min(steps) < self.horizon or max(steps) - min(steps) >= self._max_steps):
            rows = newest_steps(received, self._max_steps)
            rows = rows[rows["step"] >= self.horizon]
            self.counts.too_old += len(received) - len(rows)
            steps = set(rows["step"].tolist())
        complete = int(report.complete)
        chunks = {step // CHUNK_STEPS for step in steps}
        if complete > member.complete and complete >= self.horizon:
            chunks.add(complete // CHUNK_STEPS)
        head: dict[str, Any] = {"complete": max(complete, member.complete), "world_size": self.world_size}
        head |= {"host": member.host, "gpu_uuid": member.gpu_uuid}
        is_duplicate = False
        for chunk in sorted(chunks):
            inside = rows if len(chunks) == 1 else rows[rows["step"] // CHUNK_STEPS == chunk]
            if self._apply_chunk(chunk, rank, inside, offset, head):
                self.dirty.update(step for step in steps if step // CHUNK_STEPS == chunk)
            else:
                is_duplicate = True
        before, member.complete = member.complete, max(member.complete, complete)
        if is_new:
            self.frontier.add(member.complete)
        else:
            self.frontier.advance(before, member.complete)
        return is_duplicate

    def _apply_chunk(self, chunk: int, rank: int, rows: Rows, offset: int, head: dict[str, Any]) -> bool:
        """Merge rows into a chunk and return whether this offset is new to it."""
        chunks = self.members[rank].chunks
        old = _NOTHING
        if chunk in chunks:
            record = unpack_rows(chunks[chunk], COLLECTIVE_ROW)
            if offset <= record.offset:
                return False
            old = record.rows
        merged = stacked([old, rows]) if follows(rows, old) else merge(old, rows)
        value = pack_rows(offset, head, merged)
        self.store[self.chunk_key(chunk, rank)] = chunks[chunk] = value
        return True

    def stored(self, steps: Iterable[int]) -> list[tuple[int, bytes]]:
        """Return (rank, value) of the chunks that some steps lie in, by rank and step."""
        chunks = sorted({step // CHUNK_STEPS for step in steps})
        members = sorted(self.members.items())
        return [(rank, member.chunks[c]) for rank, member in members for c in chunks if c in member.chunks]

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
            for rank, member in self.members.items():
                for chunk in [c for c in member.chunks if (c + 1) * CHUNK_STEPS <= self.horizon]:
                    del member.chunks[chunk]
                    self.store.pop(self.chunk_key(chunk, rank), None)
            self.dirty = {step for step in self.dirty if step >= self.horizon}
