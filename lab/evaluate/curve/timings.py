"""Reads the timings of single steps out of a recording: each rank's operations, and its own work before each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from drumline.lab.evaluate.curve.job_rows import STEP_COLUMNS, Floats, JobRows
from drumline.producers.derive.nccl.kernel_names import OPERATIONS
from drumline.schemas.columns import Array

#: Communicator, operation, ordinal or count, and rank of the sender; -1 where all members meet.
_Key = tuple[int, int, int, int]
SEND, RECV = OPERATIONS.index("Send"), OPERATIONS.index("Recv")


class Synchronisation(IntEnum):
    """States on whom an operation waits."""

    PEERS = 0  #: it ends for all members when the last has entered, plus the transfer
    NONE = 1  #: it takes as long as recorded
    SENDER = 2  #: members are sender and receiver; the receiver waits for the sender


@dataclass(frozen=True, eq=False)
class Operation:
    """Holds one operation of one step; arrays have an element per member.

    Attributes:
        members: indexes of ranks.
        gap_ns: own work of a member since its last operation; negative where the two overlap.
        floor_ns: how long the operation takes once nobody is waited for; `duration_ns`: how long it took.
        spread: part of the member's work in this step that lies in this gap; the parts of a step sum to 1.
        opens: 1 where this is the member's first operation of the step.
    """

    communicator: int
    operation: int
    ordinal: int
    bytes: int
    synchronisation: Synchronisation
    members: Array
    gap_ns: Floats
    floor_ns: Floats
    duration_ns: Floats
    covered_ns: Array
    spread: Floats
    opens: Floats


@dataclass(frozen=True, eq=False)
class StepTimings:
    """Holds one recorded step of all ranks. `columns`: those of gpu.step.v1, one element a rank."""

    step: int
    operations: tuple[Operation, ...]
    columns: dict[str, Array]


def runs_of_steps(rows: JobRows, spans: Iterable[tuple[int, int]]) -> list[list[StepTimings]]:
    """Return the replayable steps of the spans, in runs of steps that follow each other.

    A step is left out that a rank lacks or skipped, whose operations do not match between ranks, or whose ranks issue
    them in orders that exclude each other; so is the first one of a span, as what went before it is not known.
    """
    members = _members(rows)
    out: list[list[StepTimings]] = []
    for first, last in spans:
        run: list[StepTimings] = []
        for step in range(first + 1, last + 1):
            timings = _timings(rows, step, members)
            if timings is None:
                out.append(run)
                run = []
            else:
                run.append(timings)
        out.append(run)
    return [run for run in out if run]


def _members(rows: JobRows) -> dict[int, tuple[int, ...]]:
    """Return the ranks, by index, that operate in each communicator."""
    out: dict[int, list[int]] = {}
    for index, rank in enumerate(rows.steps):
        for communicator in np.unique(rows.collectives.get(rank, {}).get("communicator", [])).tolist():
            out.setdefault(int(communicator), []).append(index)
    return {communicator: tuple(ranks) for communicator, ranks in out.items()}


@dataclass
class _Call:
    """Holds an operation of one rank, before it is matched with those of its peers."""

    rank: int
    communicator: int
    operation: int
    ordinal: int
    bytes: int
    gap: float
    duration: float
    covered: int
    spread: float = 0.0
    opens: float = 0.0


def _timings(rows: JobRows, step: int, members: dict[int, tuple[int, ...]]) -> StepTimings | None:
    queues = list[list[_Call]]()
    values: dict[str, list[int]] = {name: [] for name in STEP_COLUMNS}
    for index, rank in enumerate(rows.steps):
        at = _row(rows.steps[rank], step)
        calls = _calls(rows, index, rank, step)
        if at is None or _row(rows.steps[rank], step - 1) is None or not calls:
            return None
        for name in STEP_COLUMNS:
            values[name].append(int(rows.steps[rank][name][at]))
        queues.append(calls)
    columns = {name: np.array(column) for name, column in values.items()}
    operations = _matched(queues, members)
    if operations is None or (columns["comm_exposed_ns"] < 0).any():
        return None
    return StepTimings(step, operations, columns)


def _row(columns: dict[str, Array], step: int) -> int | None:
    at = int(np.searchsorted(columns["step"], step))
    if at == len(columns["step"]) or columns["step"][at] != step or columns["skipped"][at]:
        return None
    return at


def _calls(rows: JobRows, index: int, rank: int, step: int) -> list[_Call]:
    """Return the operations of a rank in a step in the order of their starts; [] where the step before has none."""
    columns = rows.collectives.get(rank)
    if columns is None:
        return []
    before, low, high = np.searchsorted(columns["step"], (step - 1, step, step + 1))
    if before == low or low == high:
        return []
    ended = float((columns["start_ns"][before:low] + columns["duration_ns"][before:low]).max())
    out = []
    names = ("communicator", "operation", "ordinal", "bytes", "start_ns", "duration_ns", "covered_ns")
    for c, o, k, size, start, duration, covered in zip(*(columns[n][low:high].tolist() for n in names), strict=True):
        out.append(_Call(index, c, o, k, size, start - ended, duration, covered))
        ended = max(ended, start + duration)
    work = sum(max(0.0, call.gap) for call in out)
    for call in out:
        call.spread = max(0.0, call.gap) / work if work else float(call is out[0])
    out[0].opens = 1.0
    return out


def _matched(queues: list[list[_Call]], members: dict[int, tuple[int, ...]]) -> tuple[Operation, ...] | None:
    """Return the operations of a step, each behind all that one of its members issued before it."""
    groups: dict[_Key, list[_Call]] = {}
    sent: dict[tuple[int, int, int], int] = {}
    for calls in queues:
        for call in calls:
            groups.setdefault(_key(call, members, sent), []).append(call)
    of_call = {id(call): group for group in groups.values() for call in group}
    for group in groups.values():
        if _meets_all(group[0]) and len(group) < len(members[group[0].communicator]):
            return None
    heads, out = [0] * len(queues), list[Operation]()
    ready = [rank for rank, calls in enumerate(queues) if calls]
    while ready:
        rank = ready.pop()
        if heads[rank] == len(queues[rank]):
            continue
        group = of_call[id(queues[rank][heads[rank]])]
        if any(heads[c.rank] == len(queues[c.rank]) or queues[c.rank][heads[c.rank]] is not c for c in group):
            continue
        out.append(_operation(group))
        for call in group:
            heads[call.rank] += 1
            ready.append(call.rank)
    return tuple(out) if all(head == len(calls) for head, calls in zip(heads, queues, strict=True)) else None


def _meets_all(call: _Call) -> bool:
    return call.operation not in (SEND, RECV)


def _key(call: _Call, members: dict[int, tuple[int, ...]], sent: dict[tuple[int, int, int], int]) -> _Key:
    """Return a key that all calls of one operation have: of sends, where their communicator has two members."""
    if _meets_all(call):
        return call.communicator, call.operation, call.ordinal, -1
    count = sent[call.communicator, call.operation, call.rank] = (
        sent.get((call.communicator, call.operation, call.rank), -1) + 1
    )
    pair = members[call.communicator]
    if len(pair) != 2:
        return call.communicator, call.operation, call.ordinal, call.rank
    sender = call.rank if call.operation == SEND else sum(pair) - call.rank
    return call.communicator, SEND, count, sender


def _operation(group: Sequence[_Call]) -> Operation:
    group = sorted(group, key=lambda call: (call.operation != SEND, call.rank))
    durations = np.array([call.duration for call in group])
    synchronisation = Synchronisation.PEERS
    if not _meets_all(group[0]):
        synchronisation = Synchronisation.SENDER if len(group) == 2 else Synchronisation.NONE
    floor = np.full(len(group), durations.min()) if synchronisation != Synchronisation.NONE else durations
    first = group[0]
    return Operation(
        first.communicator,
        first.operation,
        first.ordinal,
        first.bytes,
        synchronisation,
        np.array([call.rank for call in group]),
        np.array([call.gap for call in group]),
        floor,
        durations,
        np.array([call.covered for call in group]),
        np.array([call.spread for call in group]),
        np.array([call.opens for call in group]),
    )
