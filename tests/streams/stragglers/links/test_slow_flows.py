"""Flows by both ends, which of them are slow, and what the slow ones have in common."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.slow_link import SlowLink, locate
from drumline.streams.stragglers.analysis.window_data import WindowData
from drumline.streams.stragglers.links.extent import (
    ALL_FLOWS,
    BOTH,
    ONE_FLOW,
    ONE_HOST,
    ONE_NIC,
    ONE_PAIR,
    ONE_WAY,
    RECEIVES,
    SENDS,
    SEVERAL_FLOWS,
    extent_of,
)
from drumline.streams.stragglers.links.flows import (
    LEAST_BYTES,
    TRANSFER_ROW,
    Flow,
    StoredTransfers,
    join_flows,
    summarize_flows,
    window_share,
)
from drumline.streams.stragglers.links.slow_flows import find_slow_flows

CONFIG = StragglerConfig()
HOSTS = {rank: f"node-{rank // 2}" for rank in range(16)}
SIZE = 64.0 * LEAST_BYTES


def flow(sender: int, receiver: int, rate: float = 10.0, nic: str = "", to_nic: str = "", size: float = SIZE) -> Flow:
    nics = ((nic,) if nic else (), (to_nic,) if to_nic else ())
    return Flow("c", sender, receiver, *nics, size, 1 << 17, 80.0, size / rate, size / rate)


def at(known: Flow, rate: float) -> Flow:
    return replace(known, send_ns=known.bytes / rate, receive_ns=known.bytes / rate)


def rows(*ends: tuple[int, int, int, float, float]) -> StoredTransfers:
    """Rows of ends: (rank, peer, is_send, bytes, busy_ns), of steps 10 to 19."""
    out = np.zeros(len(ends), TRANSFER_ROW)
    for row, (rank, peer, is_send, size, busy_ns) in zip(out, ends, strict=True):
        for name, value in (("rank", rank), ("comm_rank", rank), ("peer", peer), ("is_send", is_send)):
            row[name] = value
        row["bytes"], row["busy_ns"], row["transfers"] = size, busy_ns, 8
        row["first_step"], row["last_step"], row["duration_ns"] = 10, 19, 10**9
    return StoredTransfers(out, ["c"], [""])


def joined(*ends: tuple[int, int, int, float, float]) -> list[Flow]:
    stored = rows(*ends)
    return join_flows(stored, np.ones(len(stored.rows)))


@pytest.mark.parametrize(
    ("send_ns", "receive_ns", "rate"),
    [(1e6, 1e6, 100.0), (1e6, 4e6, 100.0), (4e6, 1e6, 100.0), (4e6, 4e6, 25.0)],
    ids=["fast", "the sender has nothing to send", "the receiver takes nothing", "the link is slow"],
)
def test_a_link_is_as_fast_as_the_end_that_saw_less_of_it(send_ns, receive_ns, rate):
    [result] = joined((0, 1, 1, 1e8, send_ns), (1, 0, 0, 1e8, receive_ns))
    assert (result.sender, result.receiver, result.rate) == (0, 1, pytest.approx(rate))


def test_a_flow_whose_other_end_is_not_known_has_no_rate():
    assert joined((0, 1, 1, 1e8, 1e6)) == []
    assert joined((1, 0, 0, 1e8, 1e6)) == []


def test_rows_that_lie_in_part_in_a_window_count_in_part():
    stored = rows((0, 1, 1, 1e8, 1e6))
    assert window_share(stored.rows, 15, 34, 0, 0).tolist() == [0.5]
    assert window_share(stored.rows, 20, 34, 0, 10**12).tolist() == [0.0]
    stored.rows["first_step"] = -1  # by time
    stored.rows["time_ns"] = 5 * 10**9
    assert window_share(stored.rows, 15, 34, 5_250_000_000, 10**12).tolist() == [0.75]


def history(*flows: Flow, windows: int = 3) -> list[dict[str, list[float]]]:
    return [summarize_flows(flows, [], 100)] * windows


def test_a_flow_is_compared_with_itself_and_without_a_past_with_its_peers():
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    slow = [at(ring[3], 5.0), *ring[:3], *ring[4:]]
    for baseline, is_own in ((history(*ring), True), ([], False), (history(*ring, windows=2), False)):
        result = find_slow_flows(slow, baseline, [], HOSTS, CONFIG)
        assert result is not None
        assert [(s.flow.sender, s.flow.receiver, s.is_own) for s in result.flows] == [(6, 8, is_own)]
        assert result.flows[0].ratio == pytest.approx(2.0)
    assert find_slow_flows(ring, history(*ring), [], HOSTS, CONFIG) is None
    assert find_slow_flows(slow, history(*slow), [], HOSTS, CONFIG) is None, "it always was"


def test_few_peers_are_no_norm_and_other_sizes_no_past():
    few = [flow(0, 2, 2.0), flow(2, 4), flow(4, 0)]
    assert find_slow_flows(few, [], [], HOSTS, CONFIG) is None
    small = replace(flow(0, 2), transfer_bytes=1 << 14)
    assert find_slow_flows([flow(0, 2, 2.0)], history(small), [], HOSTS, CONFIG) is None
    assert find_slow_flows([flow(0, 2, 2.0, size=LEAST_BYTES / 2)], history(flow(0, 2)), [], HOSTS, CONFIG) is None


def test_paths_that_differ_from_each_other_by_much_name_none_by_their_peers():
    rates = [4.0, 6.0, 9.0, 12.0, 16.0, 22.0, 30.0, 40.0]
    ring = [flow(a, (a + 2) % 16, rate) for a, rate in zip(range(0, 16, 2), rates, strict=True)]
    result = find_slow_flows(ring, [], [], HOSTS, CONFIG)
    assert result is not None
    assert not any(slow.is_sure for slow in result.flows)


def test_peers_show_that_a_flow_is_slow_once_it_was_so_for_some_windows():
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    slow = [at(ring[3], 5.0), *ring[:3], *ring[4:]]
    name = ring[3].name
    for before, is_sure in (([], False), ([[name]], False), ([[name], [name]], True), ([[name], []], False)):
        result = find_slow_flows(slow, [], before, HOSTS, CONFIG)
        assert result is not None
        assert [slow_flow.is_sure for slow_flow in result.flows] == [is_sure]


def test_a_late_receiver_makes_no_flow_slow_beside_one_that_is_but_may_be_part_of_what_is():
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    late_ns = ring[5].bytes / 10.0
    late = replace(at(ring[5], 5.0), late_ns=late_ns)
    slow = [at(ring[3], 5.0), late, *ring[:3], ring[4], *ring[6:]]
    result = find_slow_flows(slow, history(*ring), [], HOSTS, CONFIG)
    assert result is not None
    assert [slow_flow.flow.sender for slow_flow in result.flows] == [6]
    result = find_slow_flows([late, *ring[:5], *ring[6:]], history(*ring), [], HOSTS, CONFIG)
    assert result is not None
    assert [(slow_flow.flow.sender, slow_flow.is_sure) for slow_flow in result.flows] == [(10, False)]


def test_what_is_slow_by_chance_beside_a_slow_link_changes_nothing():
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    now = [at(ring[3], 2.5), at(ring[6], 7.0), *ring[:3], *ring[4:6], ring[7]]
    result = find_slow_flows(now, history(*ring), [], HOSTS, CONFIG)
    assert result is not None
    assert (len(result.flows), len(result.evidence(HOSTS)["flows"])) == (2, 1)
    assert (result.extent.detail, result.extent.host, result.extent.to_host) == (ONE_FLOW, "node-3", "node-4")


def both(*pairs: tuple[int, int]) -> list[Flow]:
    return [flow(*pair) for a, b in pairs for pair in ((a, b), (b, a))]


def mesh(hosts: int) -> list[Flow]:
    """All flows between ranks of the same place on each host, each place on its own network device."""
    return [
        flow(2 * a + rail, 2 * b + rail, nic=f"mlx5_{rail}", to_nic=f"mlx5_{rail}")
        for a in range(hosts)
        for b in range(hosts)
        for rail in range(2)
        if a != b
    ]


@pytest.mark.parametrize(
    ("is_slow", "expected"),
    [
        (lambda f: (f.sender, f.receiver) == (2, 4), (ONE_FLOW, ONE_WAY, "node-1", "node-2", "mlx5_0")),
        (lambda f: {f.sender, f.receiver} == {2, 4}, (ONE_FLOW, BOTH, "node-1", "node-2", "mlx5_0")),
        (lambda f: f.sender in (2, 3) and f.receiver in (4, 5), (ONE_PAIR, ONE_WAY, "node-1", "node-2", "")),
        (lambda f: {f.sender // 2, f.receiver // 2} == {1, 2}, (ONE_PAIR, BOTH, "node-1", "node-2", "")),
        (lambda f: f.sender == 3, (ONE_NIC, SENDS, "node-1", "", "mlx5_1")),
        (lambda f: 3 in (f.sender, f.receiver), (ONE_NIC, BOTH, "node-1", "", "mlx5_1")),
        (lambda f: f.receiver in (2, 3), (ONE_HOST, RECEIVES, "node-1", "", "")),
        (lambda f: {f.sender, f.receiver} & {2, 3}, (ONE_HOST, BOTH, "node-1", "", "")),
        (lambda f: True, (ALL_FLOWS, "", "", "", "")),
        (lambda f: (f.sender, f.receiver) in ((0, 2), (4, 6)), (SEVERAL_FLOWS, "", "", "", "")),
        (lambda f: (f.sender, f.receiver) in ((0, 2), (0, 4)), (SEVERAL_FLOWS, "", "", "", "")),
    ],
)
def test_what_slow_flows_have_in_common(is_slow, expected):
    flows = mesh(4)
    slow = [slow_flow for slow_flow in flows if is_slow(slow_flow)]
    extent = extent_of(slow, flows, HOSTS)
    assert (extent.detail, extent.direction, extent.host, extent.to_host, extent.nic) == expected


def test_a_device_is_not_named_where_flows_without_a_known_one_are_slow_too():
    known = [flow(2, other, nic="eth0") for other in (0, 4, 6)]
    flows = [*known, *(replace(of, nics=(), communicator="d") for of in known), flow(4, 6), flow(6, 4), flow(0, 4)]
    assert extent_of(known, flows, HOSTS).detail == ONE_NIC
    extent = extent_of(flows[:6], flows, HOSTS)
    assert (extent.detail, extent.direction, extent.host) == (ONE_HOST, SENDS, "node-1")


@pytest.mark.parametrize(("sent", "returned", "named"), [(2.5, 4.3, [(0, 1)]), (5.0, 5.2, [(0, 1), (1, 0)])])
def test_a_direction_that_is_slow_by_the_queue_of_the_other_is_not_named(sent, returned, named):
    known = [flow(0, 1), flow(1, 0)]
    slow = find_slow_flows([at(known[0], sent), at(known[1], returned)], history(*known), [], HOSTS, CONFIG)
    assert slow is not None
    assert sorted((result.flow.sender, result.flow.receiver) for result in slow.alike) == named
    assert len(slow.flows) == 2, "both are no past"


def test_of_two_hosts_both_ways_it_is_the_pair_as_nothing_shows_which_host():
    flows = both((0, 2))
    extent = extent_of(flows, flows, HOSTS)
    assert (extent.detail, extent.direction, {extent.host, extent.to_host}) == (ONE_FLOW, BOTH, {"node-0", "node-1"})


def test_slow_flows_are_no_past_and_of_too_many_none_is_kept():
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    assert summarize_flows(ring, [ring[0].name], 100).keys() == {slow_flow.name for slow_flow in ring[1:]}
    assert summarize_flows(ring, [], 7) == {}


@pytest.mark.parametrize(("late_share", "is_kept"), [(0.1, True), (0.5, False), (2.0, False)])
def test_a_rate_that_a_late_receiver_hides_is_no_past(late_share, is_kept):
    known = flow(0, 1)
    late = replace(known, late_ns=late_share * known.send_ns)
    assert (known.name in summarize_flows([late], [], 100)) == is_kept


@pytest.mark.parametrize(("growth_ns", "is_located"), [(80_000, True), (200_000, True), (800_000, False)])
def test_a_flow_that_explains_no_growth_of_collectives_is_not_the_slow_link(growth_ns, is_located):
    """Over sockets a kernel may take all that is sent at once: what a sender sees is then no link."""
    ring = [flow(a, (a + 2) % 16) for a in range(0, 16, 2)]
    flows = find_slow_flows([at(ring[3], 5.0), *ring[:3], *ring[4:]], history(*ring), [], HOSTS, CONFIG)
    link = SlowLink("c", "AllReduce", 1 << 20, 2.0, 1e9, 0.3, growth_ns=growth_ns)
    data = WindowData(np.zeros(0, np.int64), np.zeros(0, np.int64), {})
    located = locate(data, link, flows, [], CONFIG)
    assert located is not None
    assert (located.flows is not None) == is_located
    assert locate(data, replace(link, communicator="other"), flows, [], CONFIG).flows is flows
