"""Verdicts `slow_link` that name who sends to whom, on jobs of several hosts whose transfers are known."""

from __future__ import annotations

import pytest
from support.link_windows import flows, windows
from support.network_world import Network, job
from support.straggler_simulator import MS, Fault

from drumline.schemas.topics import Topic

STEPS, SLOW = 300, (100, 239)
ONE_WAY = {("node-1", "node-2"): 2.0}


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("ratio", [2.0, 4.0])
def test_a_slow_link_is_named_by_both_hosts_and_its_direction_and_no_rank_is(hosts, ratio):
    sender, receiver = hosts - 1, 0
    network = Network(hosts, slow={(f"node-{sender}", f"node-{receiver}"): ratio}, slow_steps=SLOW, seed=hosts)
    result = windows(job(network, STEPS))
    inside = [window for first, window in result.items() if SLOW[0] <= first and first + 19 <= SLOW[1]]
    assert len(inside) == 7
    right = [
        detail == "one_flow" and flows(evidence) == {(sender, receiver)} and evidence["direction"] == "one_way"
        and (evidence["link_host"], evidence["link_to_host"]) == (f"node-{sender}", f"node-{receiver}")
        for detail, evidence, _ in inside
    ]  # fmt: skip
    assert sum(right) >= 0.9 * len(right)
    assert not any(named for *_, named in result.values())
    assert not any(detail for first, (detail, *_) in result.items() if first + 19 < SLOW[0] or first > SLOW[1])
    expected = inside[3][1]["flows"][0]
    assert expected["expected_gb_s"] / expected["gb_s"] == pytest.approx(ratio, rel=0.2)
    assert expected["expected_by"] == "history"


def test_a_slow_link_from_the_first_step_on_is_named_by_its_peers():
    network = Network(8, slow=ONE_WAY, slow_steps=(0, 1 << 30))
    result = list(windows(job(network, 200)).values())
    assert all(detail == "one_flow" and flows(evidence) == {(1, 2)} for detail, evidence, _ in result[2:-1])
    assert result[2][1]["flows"][0]["expected_by"] == "peers"


@pytest.mark.parametrize("which", [{"slow_senders": (1,)}, {"slow_receivers": (2,)}])
def test_a_rank_that_sends_or_takes_late_makes_no_slow_link(which):
    result = windows(job(Network(4, **which), STEPS))
    assert not any(detail for detail, *_ in result.values())


def test_a_late_host_beside_a_slow_link_is_named_and_the_link_too():
    network = Network(4, slow=ONE_WAY, slow_steps=SLOW)
    late = Fault(3, "idle", 25 * MS, first=140, last=SLOW[1])
    result = windows(job(network, STEPS, (late,)))
    both = [result[first] for first in range(160, SLOW[1] - 19, 20)]
    assert [named for *_, named in both] == [{3}] * len(both)
    assert all(detail == "one_flow" and flows(evidence) == {(1, 2)} for detail, evidence, _ in both)


def test_one_host_that_is_slow_with_all_its_peers_is_a_host_not_a_pair():
    network = Network(8, slow={("node-5", "*"): 2.0, ("*", "node-5"): 2.0}, slow_steps=SLOW)
    detail, evidence, named = windows(job(network, STEPS))[160]
    assert (detail, evidence["link_host"], evidence["direction"], named) == ("one_host", "node-5", "both", set())
    assert flows(evidence) == {(4, 5), (5, 6)}


def test_without_transfers_all_is_as_before():
    network = Network(4, slow=ONE_WAY, slow_steps=SLOW)
    stream = [item for item in job(network, STEPS) if item[1].topic != Topic.TRANSFER]
    result = windows(stream)
    assert {detail for detail, *_ in result.values()} == {"", "above_own_history"}
    with_one_end = windows(job(Network(4, slow=ONE_WAY, slow_steps=SLOW, silent=(2,)), STEPS))
    assert {detail for detail, *_ in with_one_end.values()} == {"", "above_own_history"}, "one end is no evidence"


def test_transfers_that_come_late_are_taken_in_and_their_windows_published_again():
    network = Network(4, slow=ONE_WAY, slow_steps=SLOW)
    late = [
        (time_ns + 3 * 10**9 if batch.topic == Topic.TRANSFER else time_ns, batch)
        for time_ns, batch in job(network, STEPS)
    ]
    assert windows(sorted(late, key=lambda item: item[0]))[160][0] == "one_flow"


def test_healthy_hosts_are_not_named():
    for seed in range(3):
        result = windows(job(Network(8, spread=0.1, paths=0.1, seed=seed), 400))
        assert {(detail, len(named)) for detail, _, named in result.values()} == {("", 0)}


def test_a_late_host_behind_which_others_wait_for_a_slow_link_too_is_no_slow_link():
    """Of the flow to the late rank the sender waits for it, and it then waits for data that the slow link holds up."""
    network = Network(4, slow=ONE_WAY, slow_steps=SLOW, late_receivers=((2, 3, 25 * MS),))
    late = Fault(3, "idle", 25 * MS, first=SLOW[0], last=SLOW[1])
    result = windows(job(network, STEPS, (late,), buckets=1))
    both = [result[first] for first in range(120, SLOW[1] - 19, 20)]
    assert [named for *_, named in both] == [{3}] * len(both)
    assert all(detail == "one_flow" and flows(evidence) == {(1, 2)} for detail, evidence, _ in both)
