"""A job from an operation table, as the batches that the streaming stages read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drumline.producers.activity.activity import end_ns
from drumline.producers.activity.intervals import IntervalUnion, union
from drumline.producers.batching.builder import BatchHeader, make_batch
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.derive.steps.steps import MARKER, Steps
from drumline.producers.identity import Identity, process_id
from drumline.producers.replay.operation_table.kinds import KINDS, WITHOUT_PEERS, Scope
from drumline.producers.replay.operation_table.places import OperationLayout, communicator_hash, layout_of
from drumline.producers.replay.operation_table.process_rows import Communication, ProcessRows, process_rows
from drumline.producers.replay.operation_table.table_reader import OperationTable, read_table
from drumline.producers.replay.operation_table.unrecorded_waiting import unrecorded_waiting
from drumline.schemas.batch import Batch
from drumline.schemas.columns import Array
from drumline.schemas.topics import Topic

#: Time of the first step; ns since the epoch.
FIRST_NS = 1_000_000_000_000_000_000
#: Steps in one batch, and the time between two of them. A table is read after the job: no rank is silent while a step
#: of minutes lasts.
BATCH_STEPS, ARRIVAL_NS = 4, 100_000_000


class OperationJob:
    """A job whose operations a table lists, read once; its batches can be iterated any number of times.

    Ranks and steps are renumbered 0, 1, 2, ..., as tables hold samples of them. Steps follow each other without a gap.

    Attributes:
        layout: places of the ranks, with their recorded numbers.
        recorded_steps: number of each step in the recorded job.
        processes: rows of each rank.
        unrecorded_ns: [ranks, steps], see ProcessRows.
    """

    def __init__(self, path: Path, job: str | None = None) -> None:
        """Read a table and the layout beside it. Raises BadTrace."""
        table = read_table(path)
        self.job = job or path.stem
        self.layout = layout_of(table)
        steps, step_of = np.unique(table["step"], return_inverse=True)
        self.recorded_steps: tuple[int, ...] = tuple(steps.tolist())
        start, end, bounds = _times(table, step_of, len(steps))
        ranks = np.array(self.layout.recorded_ranks)
        processes = []
        for rank in range(len(ranks)):
            rows = np.flatnonzero(table["rank"] == ranks[rank])
            rows = rows[np.lexsort((rows, start[rows]))]
            present = np.unique(step_of[rows])
            rank_steps = Steps(present, bounds[present], bounds[present + 1])
            processes.append(_process(self.layout, rank, table, rows, (start, end, step_of), rank_steps))
        waiting = unrecorded_waiting(
            [process.busy for process in processes],
            [process.communication.start_ns for process in processes],
            [*self.layout.groups(Scope.DATA), *self.layout.groups(Scope.EMBEDDING)],
            float(np.median(np.diff(bounds))),
        )
        self.processes: list[ProcessRows] = [
            process.rows(rank_waiting) for process, rank_waiting in zip(processes, waiting, strict=True)
        ]
        self.unrecorded_ns = np.array([process.unrecorded_ns for process in self.processes])

    def described(self, rank: int) -> str:
        """Return a rank as text: its recorded number where that differs, and its place in the layout."""
        place, recorded = self.layout.places[rank], self.layout.recorded_ranks[rank]
        number = f"{rank}" if rank == recorded else f"{rank} (recorded as {recorded})"
        return f"rank {number}, stage {place.stage}, replica {place.replica}"

    def unrecorded_shares(self, least: float) -> dict[int, float]:
        """Return rank -> part of its time in which it waited for what was not recorded, where that is `least`."""
        budget = [process.steps["gpu_duration_ns"].sum() for process in self.processes]
        shares = self.unrecorded_ns.sum(1) / np.maximum(1, budget)
        return {rank: share for rank, share in enumerate(shares.tolist()) if share >= least}

    def batches(self, run: str = "recorded") -> Iterator[tuple[int, Batch]]:
        """Return (time of arrival in ns, batch) of gpu.step.v1 and gpu.collective.v1, in order."""
        identities = []
        for rank in range(len(self.processes)):
            started = int(self.processes[rank].steps["start_ns"].min(initial=FIRST_NS))
            name = process_id(run, "", rank, started)
            identities.append(Identity(self.job, run, rank, -1, len(self.processes), "", "", name, start_ns=started))
        return job_batches(self.processes, identities)


def job_batches(processes: Sequence[ProcessRows], identities: Sequence[Identity]) -> Iterator[tuple[int, Batch]]:
    """Yield (time of arrival in ns, batch) of all processes, some steps of all of them at a time."""
    steps = np.unique(np.concatenate([process.steps["step"] for process in processes]))
    feeds = list[_StepFeed]()
    for process, identity in zip(processes, identities, strict=True):
        feeds += _feeds(process, identity)
    for number, first in enumerate(range(0, len(steps), BATCH_STEPS)):
        low, high = int(steps[first]), int(steps[min(first + BATCH_STEPS, len(steps)) - 1])
        for feed in feeds:
            batch = feed.batch(number, low, high)
            if batch is not None:
                yield FIRST_NS + (number + 1) * ARRIVAL_NS, batch


@dataclass(frozen=True)
class _Process:
    """Holds the operations of one rank; see process_rows()."""

    communication: Communication
    compute: tuple[Array, Array]
    steps: Steps
    gc_ns: Array | None

    @property
    def busy(self) -> IntervalUnion:
        """Return when an operation ran."""
        return union(self.compute, (self.communication.start_ns, self.communication.end_ns))

    def rows(self, waiting: IntervalUnion) -> ProcessRows:
        """Return the rows, with the waits that are no operations."""
        return process_rows(self.communication, self.compute, self.steps, gc_ns=self.gc_ns, waiting=waiting)


class _StepFeed:
    """Makes the batches of one topic and communicator of a process. `rows`: sorted by step."""

    def __init__(self, topic: Topic, identity: Identity, rows: ProcessRows, communicator: int = -1) -> None:
        self._topic, self._identity = topic, identity
        self._communicator = hash_text(communicator) if communicator >= 0 else ""
        table = rows.steps
        if communicator >= 0:
            table = rows.collectives.take(rows.collectives["communicator"] == communicator)
        self._table, self._step, self._end = table, table["step"], end_ns(table)

    def batch(self, number: int, low: int, high: int) -> Batch | None:
        """Return the rows of steps low..high as the batch with this number; None without rows."""
        begin, end = np.searchsorted(self._step, [low, high + 1]).tolist()
        if begin == end:
            return None
        rows = self._table.take(slice(begin, end))
        rows = rows.take(np.argsort(rows["start_ns"], kind="stable"))
        closed = int(self._end[begin:end].max())
        header = BatchHeader(number, 0, closed, closed, self._communicator, high, MARKER)
        return make_batch(self._topic, self._identity, header, rows)


def _feeds(process: ProcessRows, identity: Identity) -> list[_StepFeed]:
    communicators = np.unique(process.collectives["communicator"]).tolist()
    feeds = [_StepFeed(Topic.COLLECTIVE, identity, process, communicator) for communicator in communicators]
    return [_StepFeed(Topic.STEP, identity, process), *feeds]


def _times(table: OperationTable, step_of: Array, steps: int) -> tuple[Array, Array, Array]:
    """Return start and end of each row, and the bounds of steps [steps + 1]; ns since the epoch.

    Tables may count each step's time from 0.
    """
    start = np.rint(table["start_ts"] * 1e9).astype(np.int64)
    end = start + np.rint(table["duration"] * 1e9).astype(np.int64)
    first, last = np.full(steps, np.iinfo(np.int64).max), np.full(steps, np.iinfo(np.int64).min)
    np.minimum.at(first, step_of, start)
    np.maximum.at(last, step_of, end)
    bounds = FIRST_NS + np.concatenate([[0], np.cumsum(last - first)])
    moved = (bounds[:-1] - first)[step_of]
    return start + moved, end + moved, bounds


def _process(
    layout: OperationLayout, rank: int, table: OperationTable, rows: Array, times: tuple[Array, ...], steps: Steps
) -> _Process:
    """Return the operations of one rank. `rows`: its rows of the table in order; `times`: start, end and step."""
    kinds = [KINDS[name] for name in table.type_names]
    types, start, end, step = table.types[rows], *(values[rows] for values in times)
    step_index = np.searchsorted(steps.number, step)
    has_peers = np.array([kind.scope not in WITHOUT_PEERS for kind in kinds])[types]
    is_compute = np.array([kind.scope is Scope.COMPUTE for kind in kinds])[types]
    is_gc = np.array([kind.scope is Scope.HOST for kind in kinds])[types]
    hashes = np.zeros(len(kinds), np.uint64)
    for index in np.unique(types[has_peers]).tolist():
        hashes[index] = communicator_hash(layout.communicator(rank, kinds[index].scope))
    communication = Communication(
        communicator=hashes[types[has_peers]],
        operation=np.array([kind.code for kind in kinds], np.uint8)[types[has_peers]],
        bytes=np.zeros(int(has_peers.sum()), np.uint64),
        step=step[has_peers],
        start_ns=start[has_peers],
        end_ns=end[has_peers],
    )
    gc_ns = None
    if is_gc.any():
        gc_ns = np.bincount(step_index[is_gc], (end - start)[is_gc], len(steps.number)).astype(np.int64)
    return _Process(communication, (start[is_compute], end[is_compute]), steps, gc_ns)
