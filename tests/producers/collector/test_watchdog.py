"""Signs that something has stopped."""

import itertools

from drumline.producers.collector.watchdog import MAX_MISSING_NS, MISSING_NS, MissingKernelDetector, StallDetector


def test_a_number_that_stands_still_is_known_by_turns_not_by_the_clock():
    detector = StallDetector(0.25)
    assert [detector.tick(number) for number in (7, 7, 7, 8, 8)] == [0.0, 0.25, 0.5, 0.0, 0.25]


def begun(detector: MissingKernelDetector, seconds: range, since) -> list[int]:
    """Seconds in which recording restarts. `since`: second -> since when no step has had a kernel, 0 = they have."""
    restarts = []
    for second in seconds:
        if detector.tick(since(second) * 1_000_000_000, now := second * 1_000_000_000):
            restarts.append(second)
            detector.recording_started(now)
    return restarts


def test_recording_restarts_where_steps_have_no_kernels_ever_more_rarely():
    restarts = begun(MissingKernelDetector(), range(1, 4_000), lambda second: 1)  # though the restart never shows
    assert restarts[:4] == [11, 31, 71, 151]
    assert {late - early for early, late in itertools.pairwise(restarts[-3:])} == {MAX_MISSING_NS // 1_000_000_000}


def test_it_restarts_as_soon_as_at_first_where_kernels_came_in_between():
    restarts = begun(
        MissingKernelDetector(),
        range(1, 8 * 3_600),
        lambda second: second // 3_600 * 3_600 if second % 3_600 < 11 else 0,
    )
    assert restarts == [hour * 3_600 + 10 for hour in range(1, 8)]


def test_long_steps_that_are_known_at_their_end_restart_it_ever_more_rarely_too():
    detector, restarts = MissingKernelDetector(), [1_500]
    detector.recording_started(1_500_000_000_000)
    for second in range(1_500, 2_400):
        first = -(-restarts[-1] // 15) * 15  # of steps of 15 s, the first that was recorded from its start
        since = first if second >= first + 18 else 0
        if detector.tick(since * 1_000_000_000, now := second * 1_000_000_000):
            restarts.append(second)
            detector.recording_started(now)
    gaps = [late - early for early, late in itertools.pairwise(restarts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_what_was_known_before_recording_began_does_not_count():
    detector = MissingKernelDetector()
    detector.recording_started(100 * MISSING_NS)
    assert not detector.tick(1, 101 * MISSING_NS - 1)
    assert detector.tick(1, 101 * MISSING_NS)


def test_nothing_restarts_where_kernels_come():
    detector = MissingKernelDetector()
    assert not any(detector.tick(since, since + MISSING_NS - 1) for since in range(1, 10_000_000_000, 100_000_000))
    assert not detector.tick(0, 2 * MAX_MISSING_NS)
