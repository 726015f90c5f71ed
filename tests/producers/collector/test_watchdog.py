"""Signs that something has stopped."""

import itertools

from drumline.producers.collector.watchdog import MAX_MISSING_NS, MISSING_NS, MissingKernelDetector, StallDetector


def test_a_number_that_stands_still_is_known_by_turns_not_by_the_clock():
    one = StallDetector(0.25)
    assert [one.tick(number) for number in (7, 7, 7, 8, 8)] == [0.0, 0.25, 0.5, 0.0, 0.25]


def begun(one: MissingKernelDetector, seconds: range, since) -> list[int]:
    """In which seconds recording begins anew. `since`: second -> since when no step has had a kernel, 0 = they have."""
    found = []
    for second in seconds:
        if one.tick(since(second) * 1_000_000_000, now := second * 1_000_000_000):
            found.append(second)
            one.recording_started(now)
    return found


def test_recording_begins_anew_where_steps_have_no_kernels_ever_more_rarely():
    found = begun(
        MissingKernelDetector(), range(1, 4_000), lambda second: 1
    )  # though it is never heard that it began anew
    assert found[:4] == [11, 31, 71, 151]
    assert {late - early for early, late in itertools.pairwise(found[-3:])} == {MAX_MISSING_NS // 1_000_000_000}


def test_it_begins_anew_as_soon_as_ever_where_kernels_came_in_between():
    found = begun(
        MissingKernelDetector(),
        range(1, 8 * 3_600),
        lambda second: second // 3_600 * 3_600 if second % 3_600 < 11 else 0,
    )
    assert found == [hour * 3_600 + 10 for hour in range(1, 8)]


def test_long_steps_of_which_one_hears_at_their_end_begin_it_anew_ever_more_rarely_too():
    one, found = MissingKernelDetector(), [1_500]
    one.recording_started(1_500_000_000_000)
    for second in range(1_500, 2_400):
        first = -(-found[-1] // 15) * 15  # of steps of 15 s, the first that was recorded from its start
        since = first if second >= first + 18 else 0
        if one.tick(since * 1_000_000_000, now := second * 1_000_000_000):
            found.append(second)
            one.recording_started(now)
    gaps = [late - early for early, late in itertools.pairwise(found)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 8 * gaps[0]


def test_what_was_heard_before_recording_began_does_not_count():
    one = MissingKernelDetector()
    one.recording_started(100 * MISSING_NS)
    assert not one.tick(1, 101 * MISSING_NS - 1)
    assert one.tick(1, 101 * MISSING_NS)


def test_nothing_begins_anew_where_kernels_come():
    one = MissingKernelDetector()
    assert not any(one.tick(since, since + MISSING_NS - 1) for since in range(1, 10_000_000_000, 100_000_000))
    assert not one.tick(0, 2 * MAX_MISSING_NS)
