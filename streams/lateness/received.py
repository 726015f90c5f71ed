"""Conversion of records: the rows of communicators, and how far each of their ranks is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.schemas.columns import Array
from drumline.schemas.record_table import BatchTable, Ints, RecordTable
from drumline.streams.core.records import Rows
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW, KIND, OTHER, operation_number
from drumline.streams.lateness.pieces import Piece, cut

#: Value of `source` in gpu.collective.v1 and gpu.step.v1 for rows of the light tier.
NCCL = "nccl"


class MemberReport(NamedTuple):
    """Holds what one or more batches of a rank report.

    `world_size`, `host`, `gpu_uuid`, `offset`: of the last batch. `complete`: all its steps up to this one are here.
    `batches`: their number.
    """

    rank: int
    world_size: int
    host: str
    gpu_uuid: str
    complete: int
    offset: int
    batches: int = 1


class FromRanks(NamedTuple):
    """Holds what is received of one communicator.

    Attributes:
        reports: of its ranks, rising.
        pieces: the rows that belong to a step.
        rows_in: rows that came, also those that belong to no step.
        light: the light tier has measured some.
        parts: the parts that they came in.
    """

    reports: list[MemberReport]
    pieces: list[Piece]
    rows_in: int
    light: bool
    parts: list[int]


def mixed_records(parts: RecordTable) -> set[int]:
    """Return the parts of records about several communicators, which no agent writes: they have other Kafka keys."""
    names, of_records = parts.text("communicator"), defaultdict[int, set[str]](set)
    for name, record in zip(names, parts.record_of, strict=True):
        of_records[record].add(name)
    return {part for part, record in enumerate(parts.record_of) if len(of_records[record]) > 1}


def received_of(
    parts: RecordTable, offsets: Ints, max_steps: int, left_out: Collection[int]
) -> Iterator[tuple[str, FromRanks]]:
    """Yield communicators, and what parts of gpu.collective.v1 records tell of each: of all of them together, unless
    their steps are `max_steps` apart, or some parts are left out.
    """
    steps = parts.columns["step"]
    steps = steps[steps >= 0]  # others belong to no step
    if not left_out and (not len(steps) or int(steps.max()) - int(steps.min()) < max_steps):
        yield from _of_communicators(parts, offsets)
        return
    for part, batch in enumerate(parts.batches()):
        if part not in left_out:
            for name, received in _of_communicators(BatchTable.of([batch]), offsets[part : part + 1]):
                yield name, received._replace(parts=[part])


def _of_communicators(parts: RecordTable, offsets: Ints) -> Iterator[tuple[str, FromRanks]]:
    """Yield the communicators of gpu.collective.v1 records, and what their parts tell of each."""
    known: dict[str, int] = {}
    number = np.array([known.setdefault(name, len(known)) for name in parts.text("communicator")])
    ranks = parts.number("rank")
    order = np.lexsort((ranks, number))
    pieces = cut(_rows(parts), np.repeat(number, parts.counts))
    number = number[order]
    new_communicator = number[1:] != number[:-1]
    first = np.flatnonzero(np.concatenate([[True], new_communicator]))
    reports, first_of = _reports(parts, offsets, order, new_communicator)
    lights = np.logical_or.reduceat(parts.has_text("source", NCCL)[order], first).tolist()
    counts = np.add.reduceat(parts.counts[order], first).tolist()
    bounds = pairwise([*first.tolist(), parts.parts])
    at_rank = np.searchsorted(first_of, np.append(first, parts.parts)).tolist()
    places = zip(known.items(), bounds, pairwise(at_rank), counts, lights, strict=True)
    for (name, at), (begin, end), (first_rank, last_rank), count, light in places:
        of_ranks = reports[first_rank:last_rank]
        yield name, FromRanks(of_ranks, pieces.get(at, []), count, light, order[begin:end].tolist())


def _reports(
    parts: RecordTable, offsets: Ints, order: Ints, new_communicator: NDArray[np.bool_]
) -> tuple[list[MemberReport], Ints]:
    """Return the reports of all ranks of all communicators, and the first part of each. `order`: of the parts."""
    ranks, completes = parts.number("rank")[order], parts.number("complete_step")[order]
    first = np.flatnonzero(np.concatenate([[True], new_communicator | (ranks[1:] != ranks[:-1])]))
    behind = np.append(first[1:], parts.parts)
    last = order[behind - 1]
    numbers = parts.number("rank")[last], parts.number("world_size")[last]
    most = np.maximum.reduceat(completes, first)
    columns = [column.tolist() for column in (*numbers, most, offsets[last], behind - first)]
    names = parts.text("host", last), parts.text("gpu_uuid", last)
    reports = list(map(MemberReport, *columns[:2], *names, *columns[2:]))
    return reports, first


def _rows(parts: RecordTable) -> Rows:
    """Return the COLLECTIVE_ROW rows of all parts."""
    rows = _plain_rows(parts.columns, parts.rows)
    rows["rank"] = parts.ranks
    rows["light"] = np.repeat(parts.has_text("source", NCCL), parts.counts)
    lists, operation = parts.lists("operations"), parts.columns["operation"]
    if all(names is lists[0] for names in lists):  # as nearly always
        kinds, numbers = _operations(tuple(lists[0]))
    else:
        known = [_operations(tuple(names)) for names in lists]
        begins = np.cumsum([0, *map(len, lists[:-1])])  # of each part's operations among all
        operation = operation + np.repeat(begins, parts.counts)
        kinds, numbers = (np.concatenate(of_parts) for of_parts in zip(*known, strict=True))
    rows["lockstep"], rows["operation"] = kinds[operation], numbers[operation]
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
