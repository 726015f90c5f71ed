"""The wall clock steps; silence does not."""

import asyncio
from types import SimpleNamespace

from structlog.testing import capture_logs

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
        gaps.observe(clock(), behind=False)
    times.pass_(1, -HOUR)
    now = clock()
    assert gaps.due(now)
    assert gaps.observe(now, behind=False)


def test_once_the_brokers_time_is_known_the_wall_clock_does_not_matter():
    for skew in (-2 * HOUR, 2 * HOUR):
        times, clock = setup()
        broker = times.wall
        times.wall += skew
        clock.learn(times.steady - S // 10, broker - S // 20, times.steady)
        assert clock() == broker
        times.pass_(3, step=HOUR)
        assert clock() == broker + 3 * S
        assert clock.skew_s == skew / S


def test_the_acknowledgement_that_came_back_soonest_counts():
    times, clock = setup()
    broker = times.wall
    clock.learn(times.steady - 20 * S, broker - 20 * S, times.steady)  # it waited for the broker to come back
    clock.learn(times.steady - S // 10, broker - S // 20, times.steady)
    assert clock() == broker


def outage(times, clock):
    """One tick a second is sent for a minute; all are acknowledged when the broker returns."""
    sent = [times.steady + second * S for second in range(60)]
    times.pass_(60)
    with capture_logs() as logs:
        for at in sent:
            clock.learn(at, times.wall, times.steady)
    return logs


def test_acknowledgements_that_waited_for_a_broker_move_no_clock():
    times, clock = setup()
    clock.learn(times.steady - S // 1000, times.wall, times.steady)
    assert outage(times, clock) == []
    assert abs(clock() - times.wall) <= S // 1000


def test_a_clock_that_began_with_them_returns_without_a_step_back():
    times, clock = setup()
    assert outage(times, clock) == [], "an error of 30 s is no skew"
    readings = [clock()]
    for _ in range(10):
        times.pass_(1)
        clock.learn(times.steady - S // 1000, times.wall, times.steady)
        readings.append(clock())
    assert readings == sorted(readings)
    times.pass_(60)
    assert abs(clock() - times.wall) <= S // 1000


def test_a_better_known_time_is_replaced_after_some_minutes():
    times, clock = setup()
    clock.learn(times.steady, times.wall, times.steady)
    times.pass_(300)
    clock.learn(times.steady - S // 2, times.wall + HOUR, times.steady)
    assert clock() - times.wall - HOUR == S // 4


def test_a_skewed_wall_clock_is_reported_once():
    times, clock = setup()
    with capture_logs() as logs:
        for _ in range(3):
            clock.learn(times.steady, times.wall - 60 * S, times.steady)
    assert [(entry["log_level"], entry["ahead_s"]) for entry in logs] == [("warning", 60.0)]


def test_only_a_time_that_the_broker_set_counts():
    times, clock = setup()

    async def acknowledge(timestamp_type):
        sent = asyncio.get_running_loop().create_future()
        clock.watch(sent)
        sent.set_result(SimpleNamespace(timestamp=(times.wall + HOUR) // 1_000_000, timestamp_type=timestamp_type))
        await asyncio.sleep(0)

    asyncio.run(acknowledge(0))
    assert clock() == times.wall
    asyncio.run(acknowledge(1))
    assert clock() == times.wall + HOUR
