"""Ends of all-to-alls that NCCL measured: from the entries of the ranks, on clocks that their reductions align."""

import numpy as np
import pytest
from support.labs.lateness import matched, rows

from drumline.streams.lateness.collective_rows import ALL_TO_ALL

ALL_REDUCE, FLOOR = 0, 10


def rank(entries, left, clock, sent=(FLOOR, FLOOR)):
    """Two all-to-alls entered at these times, then a reduction that all leave at `left`; by a clock that is ahead."""
    result = rows([*sent, 50], operation=[ALL_TO_ALL, ALL_TO_ALL, ALL_REDUCE])
    result["light"] = 1
    result["start_ns"] = np.array([*entries, left - 50]) + clock
    return result


@pytest.mark.parametrize("clock", [0, 10**15, -(10**9)])
def test_who_enters_an_all_to_all_last_keeps_the_others_waiting_whatever_the_clocks(clock):
    table = {0: rank((1000, 2000), 5000, 0), 1: rank((1300, 2000), 5000, clock), 2: rank((1100, 2050), 5000, 7)}
    result = matched(0, table, 3, 0.8)
    assert result["wait_ns"].tolist() == [300 + 50, 50, 200]
    assert result["lateness_ns"].tolist() == [0, 300, 100 + 50]
    assert result["floor_ns"].tolist() == [FLOOR + FLOOR + 50] * 3


def test_an_all_to_all_lasts_at_least_until_all_is_sent():
    table = {0: rank((1000, 2000), 5000, 0, (FLOOR, 400)), 1: rank((1000, 2000), 5000, 0)}
    assert matched(0, table, 2, 0.8)["wait_ns"].tolist() == [390, 0]


def test_without_a_collective_that_aligns_the_clocks_nothing_is_compared():
    table = {0: rank((1000, 2000), 5000, 0)[:2], 1: rank((1300, 2000), 5000, 0)[:2]}
    result = matched(0, table, 2, 0.8)
    assert (result["collectives"].tolist(), result["wait_ns"].tolist()) == ([0, 0], [0, 0])


def test_ends_that_kernels_show_are_left_as_they_are():
    table = {0: rank((1000, 2000), 5000, 0, (60, FLOOR)), 1: rank((1300, 2000), 5000, 0)}
    for part in table.values():
        part["light"] = 0
    assert matched(0, table, 2, 0.8)["wait_ns"].tolist() == [50, 0]


def test_an_all_to_all_that_only_some_ranks_measured_without_kernels_is_not_compared():
    table = {0: rank((1000, 2000), 5000, 0, (5000, FLOOR)), 1: rank((1000, 2000), 5000, 0)}
    table[0]["light"] = 0
    result = matched(0, table, 2, 0.8)
    assert (result["collectives"].tolist(), result["wait_ns"].tolist()) == ([1, 1], [0, 0])


def test_all_to_alls_of_uneven_parts_have_no_floor_to_compare_with_other_steps():
    from drumline.streams.lateness.collective_join import match_step

    table = {0: rank((1000, 2000), 5000, 0), 1: rank((1000, 2000), 5000, 0)}
    table[1]["bytes"] = [8, 9, 8]
    kinds = match_step(0, table, 2, 0.8, 0.5).kinds
    assert [(int(k["operation"]), int(k["collectives"])) for k in kinds] == [(ALL_REDUCE, 1), (ALL_TO_ALL, 1)]
