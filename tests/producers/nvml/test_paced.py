"""Costly readings are repeated as seldom as their CPU wants."""

from itertools import pairwise

import pytest

from drumline.producers.nvml.paced import LONGEST_S, SHARE, PacedReadings

S = 10**9


def repeated(cost_s, interval_s, seconds=200):
    """Seconds at which they are read, of samples once a second."""
    cpu, times = [0.0], []

    def readings():
        cpu[0] += cost_s
        times.append(len(rows))
        return {"number": len(times)}

    paced, rows = PacedReadings(interval_s, lambda: cpu[0]), []
    for second in range(seconds):
        rows.append(paced.read(second * S, readings))
    assert rows[0] == {"number": 1}
    return times


@pytest.mark.parametrize(
    ("cost_s", "interval_s", "expected"),
    [(0.0, 0, 1), (0.0, 10, 10), (SHARE / 2, 0, 1), (3 * SHARE, 0, 3), (41 * SHARE, 10, 41), (1.0, 10, LONGEST_S)],
)
def test_the_interval_holds_or_is_longer_by_the_cost(cost_s, interval_s, expected):
    times = repeated(cost_s, interval_s)
    assert [later - earlier for earlier, later in pairwise(times)] == [expected] * (len(times) - 1)
    assert len(times) >= 200 // expected


def test_what_must_not_be_repeated_is_absent_between_two_readings():
    paced = PacedReadings(10)
    assert [paced.read_due(second * S, lambda: {"rate": 1}) for second in (5, 6, 16)] == [
        {"rate": 1},
        None,
        {"rate": 1},
    ]


def test_an_xid_and_a_clock_that_was_set_back_read_at_once():
    paced, count = PacedReadings(10), []

    def readings():
        count.append(1)
        return {"number": len(count)}

    assert paced.read(5 * S, readings)["number"] == 1
    assert paced.read(6 * S, readings)["number"] == 1
    assert paced.read(6 * S, readings, force=True)["number"] == 2
    assert paced.read(3 * S, readings)["number"] == 3
