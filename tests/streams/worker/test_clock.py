"""The wall clock steps; silence does not."""

from drumline.streams.worker.clock import StreamClock
from drumline.streams.worker.ticks import TickGapDetector

S = 1_000_000_000
HOUR = 3600 * S


class Times:
    """`wall` and `steady` are read by the clock."""

    def __init__(self):
        self.wall, self.steady = 1_000_000 * S, 7 * S

    def pass_(self, seconds, step=0):
        self.wall += round(seconds * S) + step
        self.steady += round(seconds * S)


def setup():
    times = Times()
    return times, StreamClock(lambda: times.wall, lambda: times.steady)


def test_it_is_the_wall_clock_while_that_goes_on():
    times, clock = setup()
    for seconds in (0, 0.25, 1, 100):
        times.pass_(seconds)
        assert clock() == times.wall


def test_a_step_back_is_not_followed_and_time_goes_on():
    times, clock = setup()
    before = clock()
    times.pass_(1, -HOUR)
    assert clock() == before + S
    times.pass_(2)
    assert clock() == before + 3 * S


def test_it_is_the_wall_clock_again_once_that_has_caught_up():
    times, clock = setup()
    times.pass_(1, -HOUR)
    clock()
    times.pass_(1, HOUR + S)
    assert clock() == times.wall


def test_after_a_step_back_ticks_count_as_before():
    times, clock = setup()
    gaps = TickGapDetector(5 * S)
    for _ in range(7):
        times.pass_(1)
        gaps.observe(clock())
    times.pass_(1, -HOUR)
    now = clock()
    assert gaps.due(now)
    assert gaps.observe(now)
