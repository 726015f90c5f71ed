"""Cutting rows of communicators into those of one chunk each, by rank: what a stored value takes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from drumline.streams.core.records import Rows
from drumline.streams.lateness.collective_join import Ints

#: Steps of a chunk: more of them mean fewer keys, but more bytes rewritten by each batch.
CHUNK_STEPS = 4


class Piece(NamedTuple):
    """Holds COLLECTIVE_ROW rows of one communicator in one chunk.

    Attributes:
        chunk: its number.
        rows_of: rank -> its rows in the order of their arrival.
        steps: of all rows.
    """

    chunk: int
    rows_of: dict[int, Rows]
    steps: set[int]

    def steps_of(self, left_out: set[int]) -> set[int]:
        """Return the steps of the rows of other ranks."""
        if not left_out:
            return self.steps
        return {step for rank, rows in self.rows_of.items() if rank not in left_out for step in rows["step"].tolist()}


def ranges(first: Ints, end: Ints) -> Ints:
    """Return the numbers of ranges, one behind the other."""
    length = end - first
    begin = np.cumsum(length) - length
    numbers: Ints = np.arange(int(length.sum())) + np.repeat(first - begin, length)
    return numbers


def cut(rows: Rows, communicator: Ints | None = None) -> dict[int, list[Piece]]:
    """Return communicator -> its pieces, by chunk. `communicator`: number of that of each row, None: of one, 0.

    Rows that belong to no step are left out.
    """
    pieces: dict[int, list[Piece]] = {}
    step, rank = np.ascontiguousarray(rows["step"]), np.ascontiguousarray(rows["rank"])
    begins = np.ones(len(rows), bool)
    begins[1:] = (step[1:] != step[:-1]) | (rank[1:] != rank[:-1])
    if communicator is not None:
        begins[1:] |= communicator[1:] != communicator[:-1]
    first = np.flatnonzero(begins)
    end = np.append(first[1:], len(rows))[: len(first)]
    step, rank = step[first], rank[first]
    number = np.zeros(len(first), np.int64) if communicator is None else communicator[first]
    chunk = step // CHUNK_STEPS
    order = np.lexsort((rank, chunk, number))
    order = order[step[order] >= 0]
    if not len(order):
        return pieces
    if len(order) < len(first) or (order[1:] < order[:-1]).any():
        rows = rows[ranges(first[order], end[order])]
    ends = np.cumsum(end[order] - first[order])
    step, rank, chunk, number = step[order], rank[order], chunk[order], number[order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (chunk[1:] != chunk[:-1]) | (number[1:] != number[:-1])
    new_piece = np.flatnonzero(is_new)
    is_new[1:] |= rank[1:] != rank[:-1]
    new_rank = np.flatnonzero(is_new)
    begin_of = np.append(ends[new_rank] - (end - first)[order][new_rank], ends[-1]).tolist()
    views = [rows[begin:behind] for begin, behind in pairwise(begin_of)]
    ranks, steps = rank[new_rank].tolist(), step.tolist()
    bounds = pairwise([*new_piece.tolist(), len(order)])
    rank_bounds = pairwise([*np.searchsorted(new_rank, new_piece).tolist(), len(new_rank)])
    of_pieces = zip(number[new_piece].tolist(), chunk[new_piece].tolist(), bounds, rank_bounds, strict=True)
    for name, at, (begin, behind), (first_rank, last_rank) in of_pieces:
        rows_of = dict(zip(ranks[first_rank:last_rank], views[first_rank:last_rank], strict=True))
        pieces.setdefault(name, []).append(Piece(at, rows_of, {*steps[begin:behind]}))
    return pieces
