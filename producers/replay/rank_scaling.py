"""Scaling of a recorded job to N ranks: assigns to each rank the recorded process that it repeats, under a new name.

The job is copied whole: rank R*c + i repeats recorded rank i in copy c, of R recorded ranks. A communicator of all
recorded ranks has all N ranks, under its own hash; each copy has its own smaller ones. Copy 0 is the recording, faults
included. The others repeat a healthy rank: in each phase of the manifest one without a fault; where the manifest has no
phases, the rank that waited longest for others. A rank only repeats one with collectives of the same kind, so that
counts agree. Device samples are those of one GPU from start to end.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drumline.producers.activity.table import Table, concatenate_tables
from drumline.producers.derive.nccl.kernel_names import hash_text
from drumline.producers.derive.rows import Derived, DerivedCounts
from drumline.producers.replay.trace import Rank
from drumline.schemas.columns import Array


class BadRanks(ValueError):
    """The recording cannot be scaled to this number of ranks."""


@dataclass(frozen=True)
class RankSource:
    """One process of the replayed job.

    Attributes:
        info: its rank, host and GPU.
        source: index of the derived rows that it repeats.
        communicators: hash in the source -> text of its communicator.
    """

    info: Rank
    local_rank: int
    source: int
    communicators: Mapping[int, str]


@dataclass(frozen=True)
class TraceSlice:
    """Steps from `first_step` (to the next slice's) and the ranks with a fault in them."""

    first_step: int
    faulty: frozenset[int]


def trace_slices(phases: Sequence[Mapping[str, Any]]) -> list[TraceSlice]:
    """Return the phases of a manifest, by step; the first begins with the recording."""
    slices = sorted((int(p["first_step"]), frozenset(int(r) for r in p["fault_ranks"])) for p in phases)
    return [TraceSlice(first, faulty) for first, faulty in slices] or [TraceSlice(0, frozenset())]


def rank_sources(
    ranks: Sequence[Rank], recorded: Sequence[Derived], wanted: int, phases: Sequence[Mapping[str, Any]] = ()
) -> tuple[list[RankSource], list[Derived]]:
    """Return the processes of a job of `wanted` ranks and the rows that they repeat. Raises BadRanks if it has too
    few.
    """
    if wanted < len(ranks):
        raise BadRanks(f"--ranks {wanted}: the recording has {len(ranks)} ranks and cannot be made smaller")
    sources = list(recorded)
    members = [_communicators(d) for d in recorded]
    world = set(members[0]).intersection(*members[1:])
    spans = trace_slices(phases)
    repeated = [healthy(recorded, role, spans, world) for role in range(len(ranks))] if wanted > len(ranks) else []
    spliced: dict[tuple[int, ...], int] = {}
    result = []
    for rank in range(wanted):
        copy, role = divmod(rank, len(ranks))
        info, local = _renamed(ranks[role], rank, copy), _local_rank(ranks, role)
        if copy == 0:
            result.append(RankSource(info, local, role, {c: hash_text(c) for c in members[role]}))
            continue
        chosen = repeated[role]
        if chosen not in spliced:
            spliced[chosen] = len(sources)
            sources.append(_spliced(recorded, chosen, spans))
        names = {
            source: hash_text(communicator) if communicator in world else _copied_hash(communicator, copy)
            for source, communicator in zip(members[chosen[0]], members[role], strict=True)
        }
        result.append(RankSource(info, local, spliced[chosen], names))
    return result, sources


def healthy(recorded: Sequence[Derived], role: int, spans: Sequence[TraceSlice], world: set[int]) -> tuple[int, ...]:
    """Return for each slice the rank to repeat: without fault, of the role's kind, with the longest wait (least
    late).
    """
    shape = _shape(recorded[role], world)
    same_shape = [i for i, candidate in enumerate(recorded) if _shape(candidate, world) == shape]
    chosen = []
    for at, span in enumerate(spans):
        until = spans[at + 1].first_step if at + 1 < len(spans) else np.iinfo(np.int64).max
        candidates = [i for i in same_shape if i not in span.faulty] or [role]
        wait_ns = []
        for i in candidates:
            steps = recorded[i].collectives["step"]
            inside = (steps >= span.first_step) & (steps < until)
            wait_ns.append(int(recorded[i].collectives["duration_ns"][inside].sum()))
        chosen.append(candidates[int(np.argmax(wait_ns))])
    return tuple(chosen)


def _communicators(derived: Derived) -> list[int]:
    """Return the hashes in order of first use."""
    values, first = np.unique(derived.collectives["communicator"], return_index=True)
    return [int(c) for c in values[np.argsort(first)]]


def _shape(derived: Derived, world: set[int]) -> tuple[tuple[bool, int, int], ...]:
    """Return a rank's communicators in order of first use: whether all ranks are in it, first operation, its bytes."""
    rows = derived.collectives
    values, first = np.unique(rows["communicator"], return_index=True)
    return tuple(
        (int(c) in world, int(rows["operation"][i]), int(rows["bytes"][i]))
        for i, c in sorted(zip(first.tolist(), values.tolist(), strict=True))
    )


def _spliced(recorded: Sequence[Derived], chosen: Sequence[int], spans: Sequence[TraceSlice]) -> Derived:
    """Return one process of the chosen ranks' slices, cut where steps begin; communicators are named as by the
    first.
    """
    first = recorded[chosen[0]]
    if len(set(chosen)) == 1:
        return first
    names = _communicators(first)
    pieces: dict[str, list[Table]] = {"kernels": [], "copies": [], "collectives": [], "steps": [], "ranges": []}
    for at, index in enumerate(chosen):
        source = recorded[index]
        low = spans[at].first_step if at else None
        high = spans[at + 1].first_step if at + 1 < len(spans) else None
        host, gpu = _edges(source.steps, "start_ns", low, high), _edges(source.steps, "gpu_start_ns", low, high)
        pieces["kernels"].append(source.kernels.take(_within(source.kernels["start_ns"], gpu)))
        pieces["copies"].append(source.copies.take(_within(source.copies["start_ns"], gpu)))
        pieces["ranges"].append(source.ranges.take(_within(source.ranges["start_ns"], host)))
        pieces["steps"].append(source.steps.take(_within(source.steps["start_ns"], host)))
        rows = source.collectives
        numbers = (low if low is not None else -1, high if high is not None else np.iinfo(np.int64).max)
        inside = np.where(rows["step"] >= 0, _within(rows["step"], numbers), _within(rows["start_ns"], gpu))
        rows = rows.take(inside.astype(bool))
        translate = dict(zip(_communicators(source), names, strict=True))
        values, inverse = np.unique(rows["communicator"], return_inverse=True)
        hashes = np.array([translate[int(c)] for c in values], dtype=np.uint64)
        pieces["collectives"].append(Table({**rows.columns, "communicator": hashes[inverse]}, rows.dictionaries))
    joined: dict[str, Any] = {name: concatenate_tables(tables) for name, tables in pieces.items()}
    counts = DerivedCounts(skipped_steps=int(joined["steps"]["skipped"].sum()))
    return replace(first, **joined, counts=counts, invalid={})


def _edges(steps: Table, column: str, low: int | None, high: int | None) -> tuple[int, int]:
    """Return the times at which steps low and high begin, by a column of gpu.step.v1."""
    number, times = steps["step"], steps[column]

    def of(step: int | None, default: int) -> int:
        at = int(np.searchsorted(number, step)) if step is not None else len(number)
        return int(times[at]) if at < len(number) else default

    return (of(low, np.iinfo(np.int64).max) if low is not None else 0), of(high, np.iinfo(np.int64).max)


def _within(values: Array, bounds: tuple[int, int]) -> Array:
    inside: Array = (values >= bounds[0]) & (values < bounds[1])
    return inside


def _renamed(info: Rank, rank: int, copy: int) -> Rank:
    """Return a recorded process as rank `rank`; every copy but the first has other hosts and GPUs."""
    if copy == 0:
        return info
    gpu = f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'{info.gpu_uuid}/{copy}')}"
    return replace(info, rank=rank, host=f"{info.host}-{copy}", gpu_uuid=gpu)


def _local_rank(ranks: Sequence[Rank], role: int) -> int:
    """Return the position among the ranks of the same host."""
    return sum(1 for other in ranks if other.host == ranks[role].host and other.rank < ranks[role].rank)


def _copied_hash(communicator: int, copy: int) -> str:
    if (name := hash_text(communicator)).startswith("~"):
        return f"{name} {copy}"
    return hashlib.blake2b(f"{hash_text(communicator)}/{copy}".encode(), digest_size=8).hexdigest()
