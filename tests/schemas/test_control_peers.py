"""The healthy rank that a late one is compared with."""

from drumline.schemas.control import compared_ranks, healthy_peer, with_peer


def test_the_lowest_healthy_rank_of_the_same_host_comes_first():
    ranks = [(-1, "b"), (6, "b"), (4, "b"), (0, "a")]
    assert healthy_peer(ranks, "b") == 4
    assert healthy_peer(ranks, "c") == 0, "of any host where its own has none"
    assert healthy_peer([(-1, "b")], "b") == -1, "the job as a whole is no rank"


def test_a_healthy_rank_of_the_late_ones_communicator_comes_before_one_of_its_host():
    ranks = [(1, "b"), (4, "a"), (5, "b"), (8, "a")]
    assert healthy_peer(ranks, "b", [8, 4, 12]) == 4
    assert healthy_peer(ranks, "b", [4, 5]) == 5, "of both, where there is one"
    assert healthy_peer(ranks, "b", [12]) == 1, "none of them is healthy"
    assert with_peer(0, "b", ranks, [4]) == [0, 4]


def test_the_ranks_that_a_late_one_was_compared_with_are_in_the_evidence():
    assert compared_ranks('{"peers": [4, 8], "steps": 3}') == {4, 8}
    for text in ("{}", "", "[]", "7", '{"peers": 7}', '{"peers": ["x", null]}', "[" * 5_000):
        assert compared_ranks(text) == frozenset()


def test_a_deep_window_has_the_late_rank_and_its_peer_in_order():
    assert with_peer(5, "b", [(0, "a"), (4, "b")]) == [4, 5]
    assert with_peer(5, "b", []) == [5]
