"""The healthy rank that a late one is compared with."""

from drumline.schemas.control import healthy_peer, with_peer


def test_the_lowest_healthy_rank_of_the_same_host_comes_first():
    ranks = [(-1, "b"), (6, "b"), (4, "b"), (0, "a")]
    assert healthy_peer(ranks, "b") == 4
    assert healthy_peer(ranks, "c") == 0, "of any host where its own has none"
    assert healthy_peer([(-1, "b")], "b") == -1, "the job as a whole is no rank"


def test_a_deep_window_has_the_late_rank_and_its_peer_in_order():
    assert with_peer(5, "b", [(0, "a"), (4, "b")]) == [4, 5]
    assert with_peer(5, "b", []) == [5]
