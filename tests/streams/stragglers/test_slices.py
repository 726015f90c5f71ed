"""Rows of many ranks are cut into those of the values that they are stored in."""

import numpy as np
import pytest

from drumline.streams.stragglers.slices import RANKS_OF_VALUE, cut

ROW = np.dtype([("rank", "<i4"), ("number", "<i8")])


def pieces(ranks, times):
    rows = np.zeros(len(ranks), ROW)
    rows["rank"], rows["number"] = ranks, np.arange(len(ranks))
    return [
        (place, inside["number"].tolist(), parts.tolist())
        for place, inside, parts in cut(rows, np.array(times, np.int64), np.arange(len(ranks)) * 10)
    ]


def test_no_rows_have_no_places():
    assert pieces([], []) == []


def test_rows_of_one_place_stay_together_in_their_order():
    assert pieces([1, 0, 1], [4, 4, 4]) == [((4, 0), [0, 1, 2], [0, 10, 20])]


def test_places_rise_by_time_and_then_by_slice():
    ranks = [0, RANKS_OF_VALUE, 0, RANKS_OF_VALUE, 2 * RANKS_OF_VALUE]
    assert [place for place, *_ in pieces(ranks, [2, 1, 1, 2, 1])] == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize("seed", range(4))
def test_every_row_is_in_its_place_once_and_in_its_order(seed):
    dice = np.random.default_rng(seed)
    ranks, times = dice.integers(0, 40, 300), dice.integers(-3, 4, 300)
    seen = []
    for (time, part), numbers, parts in pieces(ranks, times):
        assert numbers == sorted(numbers)
        assert parts == [10 * number for number in numbers]
        assert {int(ranks[number]) // RANKS_OF_VALUE for number in numbers} == {part}
        assert {int(times[number]) for number in numbers} == {time}
        seen += numbers
    assert sorted(seen) == list(range(300))
