"""Rows are cut by communicator, chunk and rank: each row of a step is in one piece, in the order of arrival."""

from __future__ import annotations

import numpy as np
import pytest
from support.labs.lateness import rows

from drumline.streams.core.records import stacked
from drumline.streams.lateness.pieces import CHUNK_STEPS, cut


@pytest.mark.parametrize("seed", range(20))
def test_each_row_of_a_step_is_in_one_piece_and_those_of_a_rank_in_their_order(seed):
    dice = np.random.default_rng(seed)
    parts, numbers = [rows([])], []
    for _ in range(dice.integers(0, 12)):
        count, number = int(dice.integers(0, 9)), int(dice.integers(0, 3))
        part = rows(dice.integers(1, 99, count), step=dice.integers(-1, 12, count))
        part["rank"] = dice.integers(0, 4)
        parts.append(np.sort(part, order="step") if dice.random() < 0.7 else part)
        numbers += [number] * count
    given = stacked(parts)
    created = cut(given, np.array(numbers, np.int64))
    expected: dict[tuple[int, int, int], list[object]] = {}
    for row, number in zip(given, numbers, strict=True):
        if row["step"] >= 0:
            expected.setdefault((number, int(row["step"]) // CHUNK_STEPS, int(row["rank"])), []).append(row.tolist())
    result = {
        (number, piece.chunk, rank): taken.tolist()
        for number, pieces in created.items()
        for piece in pieces
        for rank, taken in piece.rows_of.items()
    }
    assert result == expected
    for pieces in created.values():
        for piece in pieces:
            steps = {step for taken in piece.rows_of.values() for step in taken["step"].tolist()}
            assert piece.steps == piece.steps_of(set()) == steps
            assert piece.steps_of(set(piece.rows_of)) == set()


def test_no_rows_are_no_pieces():
    assert cut(rows([])) == {}
    assert cut(rows([1, 2], step=-1)) == {}
