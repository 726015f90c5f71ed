"""Silence means something only while ticks come."""

from __future__ import annotations

import pytest

from drumline.streams.worker.ticks import MOST_NS, OtherWorkers, TickGapDetector

S = 1_000_000_000
IDLE = 5 * S


def ticked(gaps, *seconds, behind=False):
    return [gaps.observe(1_000 * S + round(second * S), behind) for second in seconds]


def test_at_first_no_source_is_silent_yet():
    assert ticked(TickGapDetector(IDLE), 0, 1, 2, 3, 4, 5, 6) == [False] * 5 + [True] * 2


def test_after_an_outage_silence_is_measured_again():
    gaps = TickGapDetector(IDLE)
    assert ticked(gaps, *range(7))[-1]
    assert ticked(gaps, 67, 68, 69, 70, 71, 72) == [False] * 5 + [True]


def test_a_late_tick_is_no_outage():
    gaps = TickGapDetector(IDLE)
    ticked(gaps, *range(7))
    assert ticked(gaps, 8.9) == [True]


@pytest.mark.parametrize(("after_s", "due"), [(0.01, False), (0.4, False), (0.9, True), (60, True)])
def test_ticks_that_queued_up_count_as_one(after_s, due):
    gaps = TickGapDetector(IDLE)
    ticked(gaps, 0)
    assert gaps.due(1_000 * S + round(after_s * S)) == due


@pytest.mark.parametrize("before", [(), tuple(range(7))])
def test_after_an_assignment_or_an_outage_silence_counts_from_when_all_that_waited_is_read(before):
    gaps = TickGapDetector(IDLE)
    ticked(gaps, *before)
    assert not any(ticked(gaps, *range(60, 80), behind=True))
    assert ticked(gaps, *range(80, 87)) == [False] * 4 + [True] * 3


def test_a_record_that_has_just_come_does_not_begin_silence_again():
    gaps = TickGapDetector(IDLE)
    ticked(gaps, *range(7))
    assert ticked(gaps, 7, behind=True) == [False]
    assert ticked(gaps, 8) == [True]


def test_time_does_not_pass_while_a_partition_of_another_worker_has_none():
    peers = OtherWorkers()
    assert peers.time(5 * S) == 5 * S, "all partitions are this worker's"
    for second in range(10, 40):
        peers.observe({1: second, 2: min(second, 20)}, second * S)
        # The last tick came between the requests of 19 and 20.
        assert peers.time(second * S) == S * (10 if second == 10 else min(second - 1, 19))
    assert peers.time(19 * S + MOST_NS) == 19 * S
    assert peers.time(20 * S + MOST_NS) == 20 * S + MOST_NS, "not for ever"
