"""Reading steps of many communicators from their stored values, as blocks to compare.

A block is one step of one communicator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.records import Rows, stacked, unpack_all
from drumline.streams.lateness.collective_join import Ints, counting, is_in_order
from drumline.streams.lateness.collective_rows import COLLECTIVE_ROW
from drumline.streams.lateness.pieces import ranges


class OpenSteps(NamedTuple):
    """Names steps of one communicator that are to be compared.

    Attributes:
        ranks: number of ranks seen in the communicator.
        steps: their numbers, rising.
        stored: packed COLLECTIVE_ROW rows of its ranks, as they came; rows of other steps are left out.
        needs_tables: `StepMatch.table` is read.
    """

    ranks: int
    steps: Sequence[int]
    stored: Sequence[bytes]
    needs_tables: bool


class Blocks(NamedTuple):
    """Holds all blocks. A part is the rows of one rank in one block, by ordinal.

    Attributes:
        rows: COLLECTIVE_ROW, with other rows between the parts.
        rank, first, length: of each part, by block and rank: its rank, first row and number of rows.
        owner, step: of each block: index into `wanted`, and number of the step.
        begin: first part of each block, and the number of all parts.
    """

    rows: Rows
    rank: Ints
    first: Ints
    length: Ints
    owner: Ints
    step: Ints
    begin: Ints

    def rows_of(self, block: int) -> dict[int, Rows]:
        """Return rank -> its rows of a block."""
        parts = slice(self.begin[block], self.begin[block + 1])
        places = zip(self.rank[parts].tolist(), self.first[parts].tolist(), self.length[parts].tolist(), strict=True)
        return {rank: self.rows[first : first + length] for rank, first, length in places}


def read_blocks(wanted: Sequence[OpenSteps]) -> Blocks:
    """Return the blocks of all wanted steps that have rows."""
    _, counts, rows = unpack_all([value for steps in wanted for value in steps.stored], COLLECTIVE_ROW)
    value = np.repeat(np.arange(len(counts)), counts)
    step, rank = np.ascontiguousarray(rows["step"]), np.ascontiguousarray(rows["rank"])
    begins = np.ones(len(rows), bool)
    begins[1:] = (step[1:] != step[:-1]) | (rank[1:] != rank[:-1]) | (value[1:] != value[:-1])
    first = np.flatnonzero(begins)
    value, step, rank = value[first], step[first], rank[first].astype(np.int64)
    owner = np.repeat(np.arange(len(wanted)), [len(steps.stored) for steps in wanted])[value]
    # Pairs of owner and step as one rising number; steps by their place among all wanted ones, as any number may come.
    numbers = np.concatenate([np.zeros(0, np.int64), *(np.array(steps.steps, np.int64) for steps in wanted)])
    owners = np.repeat(np.arange(len(wanted)), [len(steps.steps) for steps in wanted])
    known = np.unique(numbers)
    pairs = owners * len(known) + np.searchsorted(known, numbers)
    place = np.searchsorted(known, step)
    pair = owner * len(known) + place
    block = np.searchsorted(pairs, pair)
    is_wanted = (np.append(known, -1)[place] == step) & (np.append(pairs, -1)[block] == pair)
    kept = np.flatnonzero(is_wanted)
    kept = kept[np.lexsort((rank[kept], block[kept]))]
    length = np.diff(first, append=len(rows))[kept]
    rows, parts = _whole(rows, begins, _Parts(block[kept], rank[kept], first[kept], length))
    have_rows, begin = np.unique(parts.block, return_index=True)
    begin = np.append(begin, len(parts.block))
    return Blocks(rows, parts.rank, parts.first, parts.length, owners[have_rows], numbers[have_rows], begin)


class _Parts(NamedTuple):
    """Holds parts by block and rank: of each its first row and number of rows."""

    block: Ints
    rank: Ints
    first: Ints
    length: Ints


def _whole(rows: Rows, begins: NDArray[np.bool_], parts: _Parts) -> tuple[Rows, _Parts]:
    """Return each part once, its rows by ordinal, each once: a rank may send a step in pieces, or again."""
    new = np.ones(len(parts.block), bool)
    new[1:] = (parts.block[1:] != parts.block[:-1]) | (parts.rank[1:] != parts.rank[:-1])
    in_order = np.concatenate([begins[1:] | is_in_order(rows), [True]])
    damages = np.concatenate([[0], np.cumsum(~in_order)])  # of rows against the one behind
    number = np.cumsum(new) - 1  # of the part that a piece is of
    bad = np.zeros(len(parts.block), bool)
    bad[number[~new]] = True
    bad[number[damages[parts.first + parts.length - 1] > damages[parts.first]]] = True
    first_piece = np.flatnonzero(new)
    bad = bad[: len(first_piece)]
    parts_of = _Parts(*(column[first_piece] for column in parts))
    if not bad.any():
        return rows, parts_of
    pieces = np.flatnonzero(bad[number])
    length = parts.length[pieces]
    taken = rows[ranges(parts.first[pieces], parts.first[pieces] + length)]
    part = np.repeat(number[pieces], length)
    places = counting(taken, part)
    taken, part = taken[places], part[places]
    changed, at, count = np.unique(part, return_index=True, return_counts=True)
    parts_of.first[changed], parts_of.length[changed] = len(rows) + at, count
    return stacked([rows, taken]), parts_of
