"""Silence means something only while ticks come."""

from __future__ import annotations

import pytest

from drumline.streams.worker.ticks import TickGapDetector

S = 1_000_000_000
IDLE = 5 * S


def ticked(gaps, *seconds):
    return [gaps.observe(1_000 * S + round(second * S)) for second in seconds]


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
