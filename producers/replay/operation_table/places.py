"""Places of the recorded ranks in a job's layout, and the communicators that their operations belong to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drumline.producers.replay.operation_table.kinds import KINDS, NEIGHBOURS, RECEIVED_AS, WITHOUT_PEERS, Scope
from drumline.producers.replay.operation_table.table_reader import OperationTable
from drumline.producers.replay.parquet import BadTrace
from drumline.schemas.columns import Array


class RankPlace(NamedTuple):
    """Places a rank in the layout. `lane`: counts the recorded ranks that share stage and replica."""

    stage: int
    replica: int
    lane: int


@dataclass(frozen=True)
class OperationLayout:
    """Holds the places of the recorded ranks, which are renumbered 0, 1, 2, ... in their order.

    Attributes:
        recorded_ranks: number of each rank in the recorded job.
        places: of each rank.
        stages: number of pipeline stages.
        is_interleaved: the last stage sends to the first, as its ranks hold several parts of the model.
    """

    recorded_ranks: tuple[int, ...]
    places: tuple[RankPlace, ...]
    stages: int
    is_interleaved: bool = False

    def communicator(self, rank: int, scope: Scope) -> str:
        """Return the name of the communicator in which a rank has operations of a scope. Raises ValueError.

        Ranks with one name are in one communicator. A pair of neighbours in a pipeline has one of its own, so that an
        operation's communicator and its direction state the peer.
        """
        stage, replica, lane = self.places[rank]
        if scope is Scope.DATA:
            return f"data {stage} {lane}"
        if scope is Scope.TENSOR:
            return f"tensor {stage} {replica}"
        if scope is Scope.EMBEDDING:
            return f"embedding {replica} {lane}"
        if scope is Scope.WORLD:
            return "world"
        if scope not in NEIGHBOURS:
            raise ValueError(f"{scope.name} has no communicator")
        first = stage if scope is Scope.NEXT_STAGE else stage - 1
        if not self.is_interleaved and not 0 <= first < self.stages - 1:
            raise ValueError(f"stage {stage} of {self.stages} has no {scope.name.lower().replace('_', ' ')}")
        return f"pair {first % self.stages} {replica} {lane}"

    def groups(self, scope: Scope) -> list[list[int]]:
        """Return the ranks of each stage (DATA), or of each pipeline (EMBEDDING, with all its stages)."""
        members: dict[str, list[int]] = {}
        for rank in range(len(self.places)):
            members.setdefault(self.communicator(rank, scope), []).append(rank)
        return list(members.values())


def communicator_hash(name: str) -> int:
    """Return the hash that stands for a communicator, as NCCL gives one: u8, never one of a guess."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def layout_of(table: OperationTable) -> OperationLayout:
    """Return the layout of a table. Raises BadTrace where a rank changes its place, or a send is never received."""
    ranks, first, of_row = np.unique(table["rank"], return_index=True, return_inverse=True)
    for name in ("stage", "dp_rank"):
        moved = np.flatnonzero(table[name] != table[name][first][of_row])
        if len(moved):
            row, rank = int(moved[0]), int(table["rank"][moved[0]])
            was = int(table[name][first][of_row[row]])
            raise BadTrace(
                f"{table.path}: row {row}: column {name} is {table[name][row]}, not {was} as before (rank {rank})"
            )
    lanes = dict[tuple[int, int], int]()
    places = []
    for stage, replica in zip(table["stage"][first].tolist(), table["dp_rank"][first].tolist(), strict=True):
        lane = lanes[stage, replica] = lanes.get((stage, replica), -1) + 1
        places.append(RankPlace(stage, replica, lane))
    if max(lanes.values()) >= table.sizes["tp_size"] * table.sizes.get("dsp_size", 1):
        raise BadTrace(f"{table.path}: column rank has more ranks of one stage and dp_rank than the layout")
    layout = OperationLayout(tuple(ranks.tolist()), tuple(places), table.sizes["pp_size"], table.sizes["vpp_size"] > 1)
    _check_neighbours(table, layout, of_row)
    return layout


def _check_neighbours(table: OperationTable, layout: OperationLayout, rank_of: Array) -> None:
    """Raise BadTrace where an operation has no neighbour, or recorded neighbours disagree on their number."""
    for name in table.type_names:
        kind = KINDS[name]
        if kind.scope in WITHOUT_PEERS:
            continue
        rows = np.flatnonzero(table.of_type(name))
        for rank in np.unique(rank_of[rows]).tolist():
            try:
                layout.communicator(rank, kind.scope)
            except ValueError as error:
                row = int(rows[rank_of[rows] == rank][0])
                raise BadTrace(f"{table.path}: row {row}: column optype is {name}, but {error}") from None
    _check_pairs(table, layout, rank_of)


def _check_pairs(table: OperationTable, layout: OperationLayout, rank_of: Array) -> None:
    """Raise BadTrace where a rank receives another number of messages than its neighbour sends in a step."""
    steps, step_of = np.unique(table["step"], return_inverse=True)
    place, shape = rank_of * len(steps) + step_of, (len(layout.places), len(steps))
    rank_at = {place: rank for rank, place in enumerate(layout.places)}
    for sent, received in RECEIVED_AS.items():
        sends, receives = (
            np.bincount(place[table.of_type(name)], minlength=shape[0] * shape[1]).reshape(shape)
            for name in (sent, received)
        )
        to_next = 1 if KINDS[sent].scope is Scope.NEXT_STAGE else -1
        for rank, (stage, replica, lane) in enumerate(layout.places):
            peer = rank_at.get(RankPlace((stage + to_next) % layout.stages, replica, lane))
            if peer is None or not (layout.is_interleaved or 0 <= stage + to_next < layout.stages):
                continue
            unequal = np.flatnonzero(sends[rank] != receives[peer])
            if len(unequal):
                step = int(unequal[0])
                raise BadTrace(
                    f"{table.path}: step {steps[step]}: column optype has {sent} of rank {layout.recorded_ranks[rank]} "
                    f"{sends[rank, step]} times, {received} of rank {layout.recorded_ranks[peer]} "
                    f"{receives[peer, step]} times"
                )
