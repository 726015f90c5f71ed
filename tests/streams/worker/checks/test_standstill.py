"""Work that stands still ends the worker while the broker answers; an outage or a recovery does not."""

import pytest

from drumline.streams.worker.checks.standstill import StandstillDetector, WorkStandsStill


def seen(work, until, answered=lambda now: now, since=0):
    """Observe once a second. `work`: now -> (acknowledged, in work)."""
    watch = StandstillDetector(60.0)
    for now in range(since, until):
        watch.observe({"gpu.tick.v1": work(now)}, answered(now), float(now))


def test_a_queue_that_stands_still_while_ticks_are_acknowledged_ends_the_worker():
    with pytest.raises(WorkStandsStill, match=r"nothing of gpu\.tick\.v1"):
        seen(lambda now: (7, 64), 63)


def test_one_that_moves_now_and_then_or_has_nothing_in_work_does_not():
    seen(lambda now: (now // 50, 64), 400)
    seen(lambda now: (7, 0), 400)


def test_a_broker_that_does_not_answer_is_waited_for():
    seen(lambda now: (7, 64), 400, answered=lambda now: 0.0)


def test_time_before_a_recovery_does_not_count():
    watch = StandstillDetector(60.0)
    for now in [*range(50), *range(90, 140)]:
        watch.observe({"gpu.tick.v1": (7, 64)}, float(now), float(now))
