"""The k-th collective over its ranks: waits and lateness from durations, and what is not compared."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.labs.lateness import matched, rows

from drumline.streams.core.records import stacked
from drumline.streams.lateness.collective_join import is_in_order, merge

NOTHING = rows([])


def test_the_rank_with_the_shortest_kernel_was_late():
    result = matched(7, {0: rows([50, 10]), 1: rows([20, 10]), 2: rows([60, 12])}, 3, 0.8)
    assert result["step"].tolist() == [7, 7, 7]
    assert result["rank"].tolist() == [0, 1, 2]
    assert result["wait_ns"].tolist() == [30, 0, 42]
    assert result["lateness_ns"].tolist() == [12, 42, 0]
    assert result["floor_ns"].tolist() == [30, 30, 30]
    assert (result["worst_ordinal"][1], result["worst_longest_ns"][1], result["worst_own_ns"][1]) == (0, 60, 20)


def test_waiting_behind_own_work_is_not_exposed():
    waiting = rows([50])
    waiting["covered_ns"] = 20
    result = matched(0, {0: waiting, 1: rows([10])}, 2, 0.8)
    assert result["exposed_wait_ns"].tolist() == [20, 0]


def test_operations_that_may_be_left_early_are_not_compared():
    result = matched(0, {0: rows([50], lockstep=0), 1: rows([10], lockstep=0)}, 2, 0.8)
    assert result["collectives"].tolist() == [0, 0]
    assert result["wait_ns"].tolist() == [0, 0]


def test_collectives_whose_operation_differs_are_not_compared():
    result = matched(0, {0: rows([50, 9], operation=[1, 2]), 1: rows([10, 9], operation=[1, 3])}, 2, 0.8)
    assert result["collectives"].tolist() == [1, 1]
    assert result["wait_ns"].tolist() == [40, 0]


def test_a_step_whose_ranks_disagree_on_the_count_is_skipped():
    result = matched(0, {0: rows([5, 5]), 1: rows([5])}, 2, 0.8)
    assert result["collectives"].tolist() == [0, 0]


def test_a_rank_that_lost_its_last_rows_is_left_out_of_a_large_communicator():
    table = {rank: rows([5, 6, 7]) for rank in range(9)} | {9: rows([5, 6])}
    assert matched(0, table, 10, 0.8)["rank"].tolist() == list(range(9))


def test_a_lost_row_in_between_costs_only_its_collective():
    result = matched(0, {0: rows([5, 6, 7]), 1: rows([3, 4], ordinals=[0, 2])}, 2, 0.8)
    assert result["collectives"].tolist() == [2, 2]
    assert result["wait_ns"].tolist() == [2 + 3, 0]


def test_a_huge_ordinal_without_the_rows_below_it_allocates_nothing():
    huge = [2**31 - 2]
    tracemalloc.start()
    result = matched(0, {0: rows([5], ordinals=huge), 1: rows([5], ordinals=huge)}, 2, 0.8)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result["collectives"].tolist() == [0, 0]
    assert peak_bytes < 1_000_000


def test_a_step_that_lost_most_of_its_rows_is_skipped():
    result = matched(0, {0: rows([5, 6, 7]), 1: rows([4], ordinals=[2])}, 2, 0.8)
    assert result["collectives"].tolist() == [0, 0]


def test_a_rank_that_is_missing_from_a_pair_skips_the_step():
    assert matched(0, {0: rows([5])}, 2, 0.8)["collectives"].tolist() == [0]


def test_a_step_number_that_comes_again_replaces_the_earlier_one():
    warm_up, real = rows([1, 2, 3], start=1000), rows([7, 8], start=90_000)
    for order in ([warm_up, real], [real, warm_up], [real, warm_up, real]):
        merged = NOTHING
        for part in order:
            merged = merge(merged, part)
        assert merged["duration_ns"].tolist() == [7, 8]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=30), st.randoms())
def test_merging_is_a_function_of_the_set(cells, order):
    parts = [rows([10 * s + o], step=s, start=1000 * s, ordinals=[o]) for s, o in cells]
    once = merge(NOTHING, np.concatenate(parts))
    order.shuffle(parts)
    again = NOTHING
    for part in [*parts, parts[0]]:
        again = merge(again, part)
    kept = [(s, o) for s, o in sorted(set(cells))]
    assert again.tolist() == once.tolist()
    assert list(zip(once["step"].tolist(), once["ordinal"].tolist(), strict=True)) == kept


def test_ranks_are_merged_each_by_itself():
    of_ranks = [rows([7 + rank, 8], start=1000 - 300 * rank) for rank in range(3)]
    for rank, part in enumerate(of_ranks):
        part["rank"] = rank
    mixed = stacked([of_ranks[2], of_ranks[0], of_ranks[1], of_ranks[0]])
    assert merge(NOTHING, mixed).tolist() == stacked(of_ranks).tolist()


def test_rows_of_a_step_that_each_follow_the_one_before_all_count():
    assert is_in_order(rows([5, 6, 7])).tolist() == [True, True]
    assert is_in_order(rows([5, 6], ordinals=[1, 1])).tolist() == [False]
    earlier = rows([5, 6])
    earlier["start_ns"] = [2000, 1000]
    assert is_in_order(earlier).tolist() == [False], "it is of an earlier step of this number"
