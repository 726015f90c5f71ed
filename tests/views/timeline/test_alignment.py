"""Ranks are aligned by what they leave together, whatever their clocks state."""

from drumline.views.timeline.alignment import clock_offsets

SECOND = 10**9


def collectives(rank, clock, communicator="c", operation="AllReduce", steps=5):
    """Collectives that end on each whole second of the true time, seen by a clock that is off by `clock`."""
    return [
        {"rank": rank, "communicator": communicator, "operation": operation, "step": step, "ordinal": 0,
         "begin": step * SECOND - rank * 1000 + clock, "ns": rank * 1000}
        for step in range(steps)
    ]  # fmt: skip


def test_clocks_half_a_second_apart_are_aligned_to_that_of_the_lowest_rank():
    rows = collectives(3, 0) + collectives(4, 500_000_000) + collectives(5, -500_000_000)
    assert clock_offsets([3, 4, 5], rows) == {3: 0, 4: -500_000_000, 5: 500_000_000}


def test_ranks_that_meet_only_through_others_are_aligned_through_them():
    rows = collectives(0, 0, "a") + collectives(1, 70, "a") + collectives(1, 70, "b") + collectives(2, 90, "b")
    assert clock_offsets([0, 1, 2], rows) == {0: 0, 1: -70, 2: -90}


def test_a_rank_that_shares_nothing_or_only_what_may_be_left_early_has_no_offset():
    rows = collectives(0, 0) + collectives(1, 10, "other") + collectives(2, 20, operation="Broadcast")
    assert clock_offsets([0, 1, 2], rows) == {0: 0}
