"""Rounds of disjoint pairs: what all of them cover, and what log2(n) cover."""

from itertools import chain, combinations

import pytest

from drumline.producers.pairs.tournament import ALL_PAIRS, all_rounds, chosen_rounds


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 31, 32])
def test_each_two_hosts_meet_once_in_as_few_rounds_as_there_can_be(count):
    rounds = all_rounds(count)
    assert sorted(chain(*rounds)) == list(combinations(range(count), 2))
    assert len(rounds) == (count - 1 if count % 2 == 0 else count if count > 1 else 1)
    for pairs in rounds:
        assert len(set(chain(*pairs))) == 2 * len(pairs), "a host would measure twice at once"


def test_of_many_hosts_each_meets_log2_of_their_number_and_others_next_time():
    rounds = chosen_rounds(64, 1)
    assert len(rounds) == 6
    partners = {host: {*chain(*(pair for pair in chain(*rounds) if host in pair))} - {host} for host in range(64)}
    assert {len(met) for met in partners.values()} == {6}
    assert chosen_rounds(64, 2) != rounds
    assert len(chosen_rounds(ALL_PAIRS, 1)) == ALL_PAIRS - 1


def test_an_odd_number_of_many_hosts_leaves_one_without_a_partner_in_a_round():
    rounds = chosen_rounds(33, 7)
    assert [len(pairs) for pairs in rounds] == [16] * 6
