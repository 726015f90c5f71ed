"""Verdicts on links over TCP: NCCL's own times show nothing there, the kernels' counts do."""

from __future__ import annotations

import numpy as np
import pytest
from support.link_windows import flows, windows
from support.network_world import Network, job
from support.straggler_simulator import MS, Fault
from support.tcp_world import row

from drumline.infra.guidance.links import slow_link_text
from drumline.producers.network.connection_sampler import ConnectionBatches
from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import Topic
from drumline.streams.stragglers.links.connections import Connections, join_connections, with_connections
from drumline.streams.stragglers.links.flows import LEAST_BYTES, Flow
from drumline.streams.stragglers.links.transfer_state import TransferState

STEPS, SLOW = 300, (100, 239)
RING = Flow("c", 0, 1, ("eth0",), ("eth1",), 8.0 * LEAST_BYTES, 1 << 17, 8.0, 1e6, 9e6)


def inside(verdicts):
    return [window for first, window in verdicts.items() if SLOW[0] <= first and first + 19 <= SLOW[1]]


def outside(verdicts):
    return [window for first, window in verdicts.items() if first + 19 < SLOW[0] or first > SLOW[1]]


def stored(*ends, nics=()):
    """Rows of a state: (rank, local, remote, direction, bytes, ns on the network, delivery rate, retransmitted).

    `nics`: local end -> its interface."""
    state = TransferState({}, "job|run")
    for number, (rank, local, remote, direction, size, network_ns, rate, again) in enumerate(ends):
        of_kernel = {"busy_ns": network_ns, "network_ns": network_ns, "delivery_rate": rate, "retransmitted": again}
        values = row(local, remote, direction, 10, size) | (of_kernel if direction == "send" else {})
        values |= {"nic": dict(nics).get(local, "")}
        _, batch = ConnectionBatches("agent", "node").batch({"job": "job", "run": "run", "rank": rank}, [values])
        state.apply(BatchTable.of([batch]), np.array([number]))
    kept = state.between(0, 10**18)
    return kept, np.ones(len(kept.rows))


@pytest.mark.parametrize("hosts", [2, 8])
@pytest.mark.parametrize("ratio", [2.0, 4.0])
@pytest.mark.parametrize("connections", [1, 4])
def test_a_slow_direction_is_named_where_both_ends_of_nccl_see_nothing(hosts, ratio, connections):
    sender, receiver = hosts - 1, 0
    slow = {(f"node-{sender}", f"node-{receiver}"): ratio}
    network = Network(hosts, slow=slow, slow_steps=SLOW, seed=hosts, connections=connections, share=0.5)
    verdicts = windows(job(network, STEPS))
    right = [
        detail == "one_flow" and flows(evidence) == {(sender, receiver)} and evidence["direction"] == "one_way"
        for detail, evidence, _ in inside(verdicts)
    ]
    assert sum(right) >= 0.9 * len(right) >= 6
    assert not any(named for *_, named in verdicts.values())
    assert not any(detail for detail, *_ in outside(verdicts))
    [flow] = inside(verdicts)[3][1]["flows"]
    assert flow["expected_gb_s"] / flow["gb_s"] == pytest.approx(ratio, rel=0.25)
    assert flow["retransmitted_mb"] >= 1.0


def test_a_pair_that_is_slow_both_ways_is_named_so():
    slow = {("node-0", "node-1"): 2.0, ("node-1", "node-0"): 2.0}
    verdicts = windows(job(Network(2, slow=slow, slow_steps=SLOW, connections=2), STEPS))
    right = [
        flows(of) == {(0, 1), (1, 0)} and of["direction"] == "both" for detail, of, _ in inside(verdicts) if detail
    ]
    assert sum(right) >= 0.9 * len(inside(verdicts))


def test_a_receiver_that_reads_late_is_no_slow_link_and_one_beside_it_is_named():
    late = Fault(0, "idle", 25 * MS, first=SLOW[0], last=SLOW[1])
    late_receivers = ((3, 0, 25 * MS),)
    only_late = windows(
        job(Network(4, slow_steps=SLOW, late_receivers=late_receivers, connections=2), STEPS, (late,), buckets=1)
    )
    assert not any(detail for detail, *_ in only_late.values())
    slow = {("node-3", "node-0"): 2.0}
    network = Network(4, slow=slow, slow_steps=SLOW, late_receivers=late_receivers, connections=2)
    both = inside(windows(job(network, STEPS, (late,), buckets=1)))[1:]
    assert [named for *_, named in both] == [{0}] * len(both)
    assert all(flows(evidence) == {(3, 0)} for _, evidence, _ in both)


def test_healthy_hosts_are_not_named():
    for seed in range(2):
        verdicts = windows(job(Network(8, spread=0.1, paths=0.2, seed=seed, connections=2), 400))
        assert {(detail, len(named)) for detail, _, named in verdicts.values()} == {("", 0)}


def test_rows_of_connections_alone_that_come_late_are_taken_in():
    network = Network(4, slow={("node-1", "node-2"): 2.0}, slow_steps=SLOW, connections=2)
    stream = [
        (time_ns + 3 * 10**9 if batch.topic == Topic.TRANSFER else time_ns, batch)
        for time_ns, batch in job(network, STEPS)
        if batch.topic != Topic.TRANSFER or "" in batch.envelope["communicators"]
    ]
    assert windows(sorted(stream, key=lambda item: item[0]))[160][0] == "one_flow"


def test_the_rate_of_a_pair_is_that_of_its_connections_together():
    kept = stored(
        (0, "a:1", "b:2", "send", 40_000_000, 100_000_000, 100_000_000, 7),
        (1, "b:2", "a:1", "receive", 40_000_000, 0, -1, 0),
        (0, "a:3", "b:4", "send", 40_000_000, 100_000_000, 900_000_000, 0),
        (1, "b:4", "a:3", "receive", 40_000_000, 0, -1, 0),
        (0, "a:5", "b:6", "send", 200_000, 900_000_000, -1, 0),
        (1, "b:6", "a:5", "receive", 200_000, 0, -1, 0),
    )
    pairs = join_connections(*kept)
    assert pairs.keys() == {(0, 1)}
    assert pairs[0, 1][:4] == pytest.approx(Connections(80e6, 7.0, 1e8, 1.0)[:4])
    assert pairs[0, 1].rate == pytest.approx(1.0)
    assert pairs[0, 1]._replace(delivery_rate=0.0).rate == pytest.approx(0.8)


def test_a_pair_has_the_interfaces_of_both_ends_of_the_connections_that_carry_data():
    ends = [("a:1", "b:2", 40_000_000), ("a:3", "b:4", 40_000_000), ("a:5", "b:6", 200_000)]
    rows = [
        of
        for a, b, size in ends
        for of in ((0, a, b, "send", size, 10**8, 10**8, 0), (1, b, a, "receive", size, 0, -1, 0))
    ]
    nics = {"a:1": "eth1", "a:3": "eth0", "a:5": "eth7", "b:2": "ens3", "b:4": "ens3"}
    pairs = join_connections(*stored(*rows, nics=nics))
    assert (pairs[0, 1].nics, pairs[0, 1].receiver_nics) == (("eth0", "eth1"), ("ens3",))
    [flow] = with_connections([], pairs, 1e6)
    assert (flow.nics, flow.receiver_nics) == (("eth0", "eth1"), ("ens3",))


def test_the_other_end_is_who_has_the_same_ends_the_other_way_round():
    single = (0, "a:1", "b:2", "send", 40_000_000, 100_000_000, 0, 0)
    assert join_connections(*stored(single)) == {}
    assert join_connections(*stored(single, (1, "b:3", "a:1", "receive", 40_000_000, 0, -1, 0))) == {}
    both = (single, (4, "b:2", "a:1", "receive", 40_000_000, 0, -1, 0))
    assert join_connections(*stored(*both)).keys() == {(0, 4)}


def test_a_flow_is_what_the_kernel_counted_only_if_its_data_goes_over_tcp():
    over = Connections(16.0 * LEAST_BYTES, 0.0, 1e7, 0.0, nics=("eth0",))
    [flow] = with_connections([RING], {(0, 1): over}, 1e6)
    assert (flow.over_tcp, flow.communicator, flow.nics, flow.name) == (True, "c", ("eth0",), "tcp 0 1")
    assert flow.rate == pytest.approx(over.rate)
    assert with_connections([RING], {(0, 1): over._replace(bytes=2.0 * LEAST_BYTES)}, 1e6) == [RING]
    assert with_connections([RING], {(0, 1): over._replace(bytes=1000.0)}, 1e6) == [RING]
    assert with_connections([RING], {(2, 3): over._replace(bytes=1000.0)}, 1e6) == [RING]


def test_connections_that_carry_less_than_all_collectives_would_hide_no_flow_of_another_network():
    gloo = Connections(6.0 * LEAST_BYTES, 0.0, 1e7, 0.0)
    [flow] = with_connections([RING], {(0, 1): gloo}, 1e6, {"c": 8.0})
    assert flow.over_tcp, "all 8 were recorded: it is them"
    both = with_connections([RING], {(0, 1): gloo}, 1e6, {"c": 64.0})
    assert [flow.name for flow in both] == ["c 0 1", "tcp 0 1"]
    assert with_connections([RING], {(0, 1): gloo}, 1.1e7, {"c": 64.0}) == [RING]


def test_a_path_that_carries_nothing_now_and_then_has_a_rate_with_its_stalls_where_bytes_were_lost():
    moving = (0, "a:1", "b:2", "send", 40_000_000, 100_000_000, 400_000_000, 0)
    received = (1, "b:2", "a:1", "receive", 40_000_000, 0, -1, 0)

    def of(*second):
        return join_connections(*stored(moving, (0, "a:1", "b:2", "send", *second), received))[0, 1]

    stalled = of(1_000, 1_000_000_000, -1, 64_000)
    assert stalled.stalled_ns == pytest.approx(1e9, rel=0.01)
    assert stalled.rate == pytest.approx(40e6 / 1.1e9, rel=0.01)
    assert of(1_000, 1_000_000_000, -1, 0).rate == pytest.approx(0.4), "a receiver acknowledged late, and lost nothing"
    assert of(1_000, 1_000_000_000, -1, 400).rate == pytest.approx(0.4), "a probe was sent"
    assert of(1_000, 400_000_000, -1, 64_000).rate == pytest.approx(0.4), "a packet was lost, and nothing stalled"


def test_a_pair_that_is_busy_for_less_than_a_suspect_costs_is_not_evaluated():
    over = Connections(16.0 * LEAST_BYTES, 0.0, 1e7, 0.0, nics=("eth0",))
    assert with_connections([RING], {(0, 1): over}, 1.1e7) == []


def test_what_was_sent_again_is_in_the_text():
    text = (
        '{"flows": [{"from": 1, "from_host": "a", "to": 2, "to_host": "b", "gb_s": 1.0, "expected_gb_s": 2.0,'
        ' "expected_by": "history", "retransmitted_mb": 2.5}], "slow_flows": 1}'
    )
    assert "2.5 MB sent again" in slow_link_text(text)
