"""Comparing steps of many communicators at once: blocks of equal shape in one pass over their ranks and collectives.

A block is one step of one communicator. It is dense where all its ranks have as many collectives, without holes, and no
sends, receives, or all-to-alls whose end is not known. A step of a large job has thousands of dense blocks in a few
shapes. Blocks of sends and receives only have nothing to compare, but for exchanges of two ranks. `match_step` compares
the others one by one; its result defines that of every block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drumline.streams.core.medians import peers_median
from drumline.streams.core.records import Rows
from drumline.streams.lateness.blocks import Blocks, OpenSteps, read_blocks
from drumline.streams.lateness.collective_join import Ints, StepMatch, are_alike, is_sent, match_step
from drumline.streams.lateness.collective_rows import (
    COLLECTIVE_ROW,
    EXCHANGE,
    KIND_ROW,
    LATENESS_ROW,
    LOCKSTEP,
    PAIR,
    PIPELINE,
    POINT_TO_POINT,
    ROOTED,
)
from drumline.streams.lateness.pieces import ranges
from drumline.streams.lateness.sends import transfer_kinds

#: Rows of dense blocks that are compared together: some MB with all that is computed of them.
PASS_ROWS = 1 << 16
#: How a block is compared.
_ONE_BY_ONE, _DENSE, _NOTHING = 0, 1, 2


def match_blocks(wanted: Sequence[OpenSteps], quorum: float, whole_share: float) -> list[dict[int, StepMatch]]:
    """Return for each of `wanted`: step -> what `match_step` returns for its rows. Steps without rows are missing."""
    matches: list[dict[int, StepMatch]] = [{} for _ in wanted]
    blocks = read_blocks(wanted)
    if not len(blocks.owner):
        return matches
    of_part = np.repeat(np.arange(len(blocks.owner)), np.diff(blocks.begin))
    out = np.zeros(len(blocks.rank), LATENESS_ROW)
    out["step"], out["rank"] = blocks.step[of_part], blocks.rank
    ranks = np.array([steps.ranks for steps in wanted])[blocks.owner]
    are_whole = _are_whole(blocks)
    how, patterns = _classes(blocks, ranks, quorum, are_whole)
    kinds, tables = _compare_dense(blocks, np.flatnonzero(how == _DENSE), out, wanted)
    are_pairs = (
        (np.diff(blocks.begin) == PAIR) & (ranks <= PAIR) & np.logical_and.reduceat(are_whole, blocks.begin[:-1])
    )
    kinds.append(_transfers(blocks, np.flatnonzero((how == _NOTHING) & (patterns == PIPELINE) & are_pairs)))
    kinds_of, at = _by_block(kinds, len(how))
    nothing = np.zeros((0, 0), COLLECTIVE_ROW)
    begin = blocks.begin.tolist()
    for block, (owner, step) in enumerate(zip(blocks.owner.tolist(), blocks.step.tolist(), strict=True)):
        if how[block] == _ONE_BY_ONE:
            rows_of = blocks.rows_of(block)
            matches[owner][step] = match_step(step, rows_of, wanted[owner].ranks, quorum, whole_share)
        else:
            rows, table = out[begin[block] : begin[block + 1]], tables.get(block, nothing)
            matches[owner][step] = StepMatch(rows, kinds_of[at[block] : at[block + 1]], table, patterns[block])
    return matches


def _are_whole(blocks: Blocks) -> NDArray[np.bool_]:
    """Return of each part whether it has all ordinals from 0 on: they rise."""
    ordinal = blocks.rows["ordinal"]
    end = blocks.first + blocks.length
    return np.asarray((ordinal[blocks.first] == 0) & (ordinal[end - 1] == blocks.length - 1), bool)


def _classes(
    blocks: Blocks, ranks: Ints, quorum: float, are_whole: NDArray[np.bool_]
) -> tuple[Ints, NDArray[np.object_]]:
    """Return how each block is compared, and how its ranks use sends and receives. `ranks`: of its communicator."""
    rows, begin = blocks.rows, blocks.begin[:-1]
    end = blocks.first + blocks.length
    sends = np.concatenate([[0], np.cumsum(rows["lockstep"] == POINT_TO_POINT)])
    open_ended = np.concatenate([[0], np.cumsum(is_sent(rows))])
    sent = np.add.reduceat(sends[end] - sends[blocks.first], begin)
    least, most = np.minimum.reduceat(blocks.length, begin), np.maximum.reduceat(blocks.length, begin)
    is_even = (least == most) & np.logical_and.reduceat(are_whole, begin) & (sent == 0)
    is_even &= np.add.reduceat(open_ended[end] - open_ended[blocks.first], begin) == 0
    only_sends = (sent == np.add.reduceat(blocks.length, begin)) & are_whole[begin]
    size = np.diff(blocks.begin)
    how = np.where(is_even, np.where(size >= np.maximum(2.0, quorum * ranks), _DENSE, _NOTHING), _ONE_BY_ONE)
    how[only_sends] = _NOTHING
    patterns = np.full(len(how), "", object)
    paired = np.flatnonzero(only_sends & (size > 1))
    patterns[paired] = np.where(_differ(blocks, paired), PIPELINE, EXCHANGE)
    how[(patterns == EXCHANGE) & (np.maximum(size, ranks) == PAIR)] = _ONE_BY_ONE
    return how, patterns


def _differ(blocks: Blocks, chosen: Ints) -> NDArray[np.bool_]:
    """Return of some blocks whether a rank has another operation than the first rank at an ordinal that both have.

    The first rank has no holes.
    """
    parts = ranges(blocks.begin[chosen], blocks.begin[chosen + 1])
    rows = ranges(blocks.first[parts], blocks.first[parts] + blocks.length[parts])
    of_row = np.repeat(
        np.repeat(np.arange(len(chosen)), blocks.begin[chosen + 1] - blocks.begin[chosen]), blocks.length[parts]
    )
    lead = blocks.begin[chosen][of_row]
    ordinal = blocks.rows["ordinal"][rows].astype(np.int64)
    both = (ordinal >= 0) & (ordinal < blocks.length[lead])
    operation = blocks.rows["operation"]
    other = operation[rows] != operation[blocks.first[lead] + np.where(both, ordinal, 0)]
    differs = np.zeros(len(chosen), bool)
    differs[of_row[both & other]] = True
    return differs


def _compare_dense(
    blocks: Blocks, dense: Ints, out: Rows, wanted: Sequence[OpenSteps]
) -> tuple[list[tuple[Ints, Rows]], dict[int, NDArray[Any]]]:
    """Write the lateness of dense blocks to `out`, a row for each part.

    Return (blocks, their KIND_ROW rows) of each pass, and block -> what was compared, where it is needed.
    """
    kinds, tables = [], {}
    needs_table = np.array([steps.needs_tables for steps in wanted], bool)[blocks.owner]
    for chosen in _passes(blocks, dense):
        parts = blocks.begin[chosen][:, None] + np.arange(blocks.begin[chosen[0] + 1] - blocks.begin[chosen[0]])
        at = blocks.first[parts][:, :, None] + np.arange(blocks.length[parts[0, 0]])
        used, of_kinds = _compare(blocks.rows, at, out, parts)
        kinds.append((chosen[of_kinds[0]], of_kinds[1]))
        for index in np.flatnonzero(needs_table[chosen]).tolist():
            tables[int(chosen[index])] = blocks.rows[at[index][:, used[index]]]
    return kinds, tables


def _transfers(blocks: Blocks, chosen: Ints) -> tuple[Ints, Rows]:
    """Return (block, KIND_ROW row) of what the two ranks of some blocks, which are whole, send each other."""
    parts = (blocks.begin[chosen][:, None] + np.arange(PAIR)).ravel()
    first, length = blocks.first[parts], blocks.length[parts]
    rows, part = blocks.rows[ranges(first, first + length)], np.repeat(np.arange(len(parts)), length)
    index, kinds = transfer_kinds(rows, part)
    kinds["step"] = blocks.step[chosen][index]
    return chosen[index], kinds


def _passes(blocks: Blocks, dense: Ints) -> Iterator[Ints]:
    """Yield dense blocks of one shape that are compared together."""
    if not len(dense):
        return
    size, count = np.diff(blocks.begin)[dense], blocks.length[blocks.begin[dense]]
    shapes, shape = np.unique(np.stack([size, count]), axis=1, return_inverse=True)
    for number, (ranks, collectives) in enumerate(shapes.T.tolist()):
        alike = dense[np.flatnonzero(shape.ravel() == number)]
        most = max(1, PASS_ROWS // (ranks * collectives))
        yield from (alike[begin : begin + most] for begin in range(0, len(alike), most))


def _compare(rows: Rows, at: Ints, out: Rows, parts: Ints) -> tuple[NDArray[np.bool_], tuple[Ints, Rows]]:
    """Compare blocks of one shape: [blocks, ranks, collectives]. `at`: their rows; `parts`: their places in `out`.

    Return the collectives that were compared, [blocks, collectives], and (index of the block, row) of each kind.
    """
    operation, kind = rows["operation"][at], rows["lockstep"][at[:, 0]]
    used = (operation == operation[:, :1]).all(1) & ((kind == LOCKSTEP) | (kind == ROOTED))
    lockstep = used & (kind == LOCKSTEP)
    chosen = np.flatnonzero(lockstep.any(1))
    if not len(chosen):
        return used, (chosen, np.zeros(0, KIND_ROW))
    at, is_used, is_lockstep = at[chosen], used[chosen][:, None], lockstep[chosen][:, None]
    blocks, ranks, collectives = at.shape
    duration = rows["duration_ns"][at]
    floor, longest = duration.min(1, keepdims=True), duration.max(1, keepdims=True)
    wait = np.where(is_used, duration - floor, 0)
    late = np.where(is_used, longest - duration, -1)
    side_by_side = duration.astype(np.float64).transpose(1, 0, 2).reshape(ranks, blocks * collectives)
    median = peers_median(side_by_side).reshape(ranks, blocks, collectives).transpose(1, 0, 2)
    worst = late.argmax(2)
    size, leader = rows["bytes"][at[:, 0]], np.arange(blocks)[:, None]
    result = out[parts[chosen]]
    result["collectives"] = is_lockstep.sum(2)
    result["wait_ns"], result["lateness_ns"] = wait.sum(2), np.where(is_lockstep, late, 0).sum(2)
    result["exposed_wait_ns"] = np.where(is_used, np.maximum(0, wait - rows["covered_ns"][at]), 0).sum(2)
    result["floor_ns"] = np.where(is_lockstep, floor, 0).sum(2)
    result["bytes"] = np.where(is_lockstep[:, 0], size, np.uint64(0)).sum(1)[:, None]
    result["lag_ns"] = np.where(is_lockstep, median - duration, -np.inf).max(2)
    result["worst_ordinal"], result["worst_operation"] = worst, operation[chosen][leader, 0, worst]
    result["worst_longest_ns"] = longest[leader, 0, worst]
    result["worst_own_ns"] = np.take_along_axis(duration, worst[:, :, None], 2)[:, :, 0]
    out[parts[chosen]] = result
    has_floor = is_lockstep[:, 0] & are_alike(rows["operation"], rows["bytes"], at)
    index, kinds = _kinds(has_floor, operation[chosen][:, 0], size, floor[:, 0])
    kinds["step"] = result["step"][index, 0]
    return used, (chosen[index], kinds)


def _kinds(lockstep: NDArray[np.bool_], operation: Ints, size: Ints, floor: Ints) -> tuple[Ints, Rows]:
    """Return (index of the block, KIND_ROW row) of each kind, sorted. Shapes are [blocks, collectives]."""
    block, column = np.nonzero(lockstep)
    operation, size, floor = operation[block, column], size[block, column], floor[block, column]
    order = np.lexsort((size, operation, block))
    block, operation, size, floor = block[order], operation[order], size[order], floor[order]
    begins = np.ones(len(block), bool)
    begins[1:] = (block[1:] != block[:-1]) | (operation[1:] != operation[:-1]) | (size[1:] != size[:-1])
    first = np.flatnonzero(begins)
    kinds = np.zeros(len(first), KIND_ROW)
    kinds["operation"], kinds["bytes"] = operation[first], size[first]
    kinds["collectives"] = np.diff(first, append=len(block))
    kinds["floor_ns"] = np.add.reduceat(floor, first)
    return block[first], kinds


def _by_block(kinds: Sequence[tuple[Ints, Rows]], blocks: int) -> tuple[Rows, list[int]]:
    """Return all kinds by block, and the place of the first of each block, and behind the last."""
    of_kind = np.concatenate([np.zeros(0, np.int64), *(block for block, _ in kinds)])
    rows = np.concatenate([np.zeros(0, KIND_ROW), *(rows for _, rows in kinds)])
    order = np.argsort(of_kind, kind="stable")
    return rows[order], np.searchsorted(of_kind[order], np.arange(blocks + 1)).tolist()
