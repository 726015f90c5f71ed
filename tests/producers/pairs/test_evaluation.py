"""Names of hosts and links, from made-up rates of all pairs."""

from itertools import combinations

import pytest

from drumline.producers.pairs.evaluation import (
    LARGE_LOST,
    MOST_AGAIN,
    PairResult,
    evaluate,
    pairs_again,
)  # fmt: skip

FAST, TRIP = 1e9, 50e-6


def world(count, slow=None, trips=None, pairs=None, times=2):
    """Return all pairs, measured `times`. `slow`: (sender, receiver) -> rate; `trips`: pair -> seconds."""
    slow, trips = slow or {}, trips or {}
    return [
        PairResult(a, b, slow.get((a, b), FAST), slow.get((b, a), FAST), trips.get((a, b), TRIP), times=times)
        for a, b in pairs or combinations(range(count), 2)
    ]


def named(pairs, count, missing=None):
    names = [f"n{number}" for number in range(count)]
    return [(finding.kind, finding.hosts) for finding in evaluate(pairs, missing or {}, names)]


def slow_host(host, count, rate, ways=(0, 1)):
    peers = [other for other in range(count) if other != host]
    return {ends: rate for other in peers for ends in [((host, other), (other, host))[way] for way in ways]}


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_healthy_hosts_have_no_finding(count):
    jitter = {(a, b): FAST * (1 - 0.03 * ((a + b) % 4)) for a in range(count) for b in range(count)}
    assert named(world(count, jitter), count) == []


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_a_link_that_is_slow_one_way_is_named_with_its_direction(count):
    assert named(world(count, {(1, 0): FAST / 2}), count) == [("slow_link", (1, 0))]


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("ways", [(0,), (1,), (0, 1)])
def test_a_host_that_is_slow_with_every_other_is_named_and_no_link(count, ways):
    pairs = world(count, slow_host(1, count, FAST / 2, ways))
    assert named(pairs, count) == [("slow_host", (1,))]
    [finding] = evaluate(pairs, {}, ["a", "b", "c", *"defgh"])
    assert ("sends" in finding.text, "receives" in finding.text) == (0 in ways, 1 in ways)


def test_a_slow_host_beside_a_slow_link_are_both_named():
    slow = {**slow_host(5, 8, FAST / 4), (2, 3): FAST / 3}
    assert named(world(8, slow), 8) == [("slow_host", (5,)), ("slow_link", (2, 3))]


def test_a_slow_host_among_few_partners_is_named():
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (1, 3), (4, 6), (5, 7), (0, 4), (1, 5), (2, 6), (3, 7)]
    assert named(world(8, slow_host(6, 8, FAST / 2), pairs=pairs), 8) == [("slow_host", (6,))]


def test_two_racks_with_a_slower_path_between_them_are_no_ones_fault():
    slow = {(a, b): FAST / 4 for a in range(8) for b in range(8) if (a < 4) != (b < 4)}
    assert named(world(8, slow), 8) == [("uneven", ())]


def test_a_pair_with_long_round_trips_is_named_at_full_rate():
    [finding] = evaluate(world(4, trips={(1, 2): 0.002}), {}, "abcd")
    assert (finding.kind, finding.hosts) == ("slow_link", (1, 2))
    assert "round trip 2000 of 50 us" in finding.text


def test_a_pair_over_which_only_small_messages_pass_hints_at_the_mtu():
    [finding] = evaluate(world(4, {(1, 2): 0.0}), {}, "abcd")
    assert finding.text.startswith("b -> c: 0.0 of 1,000 MB/s")
    assert LARGE_LOST in finding.text


def test_missing_hosts_are_stated_and_no_host_that_is_present_fails_for_them():
    findings = evaluate(world(4, pairs=[(0, 1), (0, 2), (1, 2)]), {3: "did not come within 9 s"}, "abcd")
    assert [(of.kind, of.hosts, of.fails) for of in findings] == [("missing", (3,), False)]
    assert findings[0].text == "d: did not come within 9 s"


def test_only_slow_pairs_are_measured_again_and_the_better_result_counts():
    pairs = world(4, {(0, 1): FAST / 4}, times=1)
    assert pairs_again(pairs) == [(0, 1)]
    again = pairs[0].better(PairResult(0, 1, FAST, FAST / 8, -1.0, "timed out"))
    assert again == PairResult(0, 1, FAST, FAST, TRIP, "", 2)


def test_pairs_that_are_measured_again_are_bounded_and_of_each_suspect():
    again = pairs_again(world(32, {**slow_host(5, 32, FAST / 4), **slow_host(9, 32, FAST / 4)}))
    assert len(again) == MOST_AGAIN
    assert min(sum(host in pair for pair in again) for host in (5, 9)) >= 3


def test_a_pair_without_a_measurement_is_stated_and_measured_again_and_fails_no_host():
    pairs = [pair for pair in world(4) if 3 not in (pair.first, pair.second)]
    pairs += [PairResult(host, 3, -1.0, -1.0, -1.0, "timed out") for host in range(3)]
    assert set(pairs_again(pairs)) == {(0, 3), (1, 3), (2, 3)}
    [finding] = evaluate(pairs, {}, "abcd")
    assert (finding.kind, finding.fails) == ("unmeasured", False)
    assert "a <-> d (timed out)" in finding.text


def test_two_hosts_of_a_smaller_rack_are_no_ones_fault():
    slow = {(a, b): FAST / 4 for a in range(8) for b in range(8) if (a < 6) != (b < 6)}
    assert named(world(8, slow), 8) == [("uneven", ())]


def test_two_hosts_that_are_slow_with_each_other_too_are_both_named():
    slow = {**slow_host(6, 8, FAST / 2), **slow_host(7, 8, FAST / 2)}
    assert named(world(8, slow), 8) == [("slow_host", (6,)), ("slow_host", (7,))]


def test_what_was_slow_once_only_does_not_fail():
    for slow in (slow_host(1, 8, FAST / 2), {(1, 0): FAST / 2}):
        assert [of.fails for of in evaluate(world(8, slow), {}, "abcdefgh")] == [True]
        assert [of.fails for of in evaluate(world(8, slow, times=1), {}, "abcdefgh")] == [False]


def test_more_slow_links_than_are_measured_again_are_uneven():
    slow = {(2 * number, 2 * number + 1): FAST / 2 for number in range(MOST_AGAIN + 1)}
    assert named(world(30, slow), 30) == [("uneven", ())]
