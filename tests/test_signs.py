"""Signs that something has stopped."""

from drumline.producers.signs import BLIND_NS, MOST_NS, Blind, Still


def test_a_number_that_stands_still_is_known_by_turns_not_by_the_clock():
    one = Still(0.25)
    assert [one.turn(number) for number in (7, 7, 7, 8, 8)] == [0.0, 0.25, 0.5, 0.0, 0.25]


def test_recording_begins_anew_where_steps_have_no_kernels_ever_more_rarely():
    one, begun, since = Blind(), [], 1_000
    for second in range(4_000):  # it began anew, and there is none again; that is heard a second later
        if one.turn(since, second * 1_000_000_000):
            begun.append(second)
        since = begun[-1] * 1_000_000_000 if begun and begun[-1] < second else since
    assert begun[:4] == [11, 31, 71, 151]
    assert {late - early for early, late in zip(begun[-3:], begun[-2:], strict=False)} == {MOST_NS // 1_000_000_000}


def test_nothing_begins_anew_where_kernels_come():
    one = Blind()
    assert not any(one.turn(since, since + BLIND_NS - 1) for since in range(1, 10_000_000_000, 100_000_000))
    assert not one.turn(0, 2 * MOST_NS)
