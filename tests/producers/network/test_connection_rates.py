"""Rows of connections: what each carried in an interval, of those that a process holds."""

import pytest

from drumline.producers.network.connection_rates import LEAST_BYTES, MOST_ROWS, ConnectionRates
from drumline.producers.network.connections import TcpConnection

S = 10**9
OPENED = TcpConnection("a:1", "b:2", 11, 0, 0, 0, 0, 0, 0)
OWNERS = {11: ["p"]}
MB = 1_000_000


def sampled(*polls, owners=OWNERS):
    rates = ConnectionRates()
    rates.take(S, owners)
    rates.refresh(polls[0])
    rates.take(2 * S, owners)
    for connections in polls[1:]:
        rates.refresh(connections)
    return rates.take(3 * S, owners)


def test_a_row_has_what_was_sent_and_how_long_that_was_not_acknowledged():
    sent = OPENED._replace(acknowledged=50 * MB, busy_us=500_000, receiver_us=100_000, retransmitted=3_000)
    rows, left_out = sampled([OPENED], [sent])
    [row] = rows["p"]
    assert (row["direction"], row["bytes"], row["local"], row["remote"]) == ("send", 50 * MB, "a:1", "b:2")
    assert (row["busy_ns"], row["peer_wait_ns"], row["network_ns"]) == (500_000_000, 100_000_000, 400_000_000)
    assert (row["retransmitted"], row["delivery_rate"], left_out) == (3_000, -1, 0)
    assert (row["start_ns"], row["duration_ns"], row["peer"]) == (2 * S, S, -1)


def test_the_other_end_has_a_row_of_what_it_received():
    rows, _ = sampled([OPENED], [OPENED._replace(received=5 * MB)])
    assert [(row["direction"], row["bytes"]) for row in rows["p"]] == [("receive", 5 * MB)]


def test_the_delivery_rate_is_the_median_of_polls_in_which_something_was_delivered():
    polls = [
        [OPENED._replace(acknowledged=n * MB, delivery_rate=rate)] for n, rate in ((1, 70), (2, 50), (2, 1), (3, 90))
    ]
    rows, _ = sampled([OPENED], *polls)
    assert rows["p"][0]["delivery_rate"] == 70


def test_small_and_foreign_and_new_connections_have_no_rows():
    small = OPENED._replace(acknowledged=LEAST_BYTES - 1)
    assert sampled([OPENED], [small])[0] == {}
    assert sampled([OPENED], [OPENED._replace(acknowledged=MB)], owners={12: ["p"]})[0] == {}
    assert sampled([], [OPENED._replace(acknowledged=MB)])[0] == {}


def test_a_stalled_connection_has_a_row_of_what_it_waited_for_the_network():
    stalled = OPENED._replace(acknowledged=100, busy_us=900_000, receiver_us=200_000, queued=5_000)
    [row] = sampled([OPENED], [stalled])[0]["p"]
    assert (row["bytes"], row["busy_ns"], row["network_ns"], row["queued"]) == (100, 900_000_000, 700_000_000, 5_000)
    assert sampled([OPENED], [stalled._replace(receiver_us=500_000)])[0] == {}, "the receiver had no room"


def test_another_connection_with_the_same_ends_is_a_new_one():
    assert sampled([OPENED], [OPENED._replace(inode=12, acknowledged=MB)], owners={11: ["p"], 12: ["p"]})[0] == {}


def test_a_busy_time_longer_than_the_interval_counts_as_the_interval():
    rows, _ = sampled([OPENED], [OPENED._replace(acknowledged=MB, busy_us=9_000_000, receiver_us=8_000_000)])
    [row] = rows["p"]
    assert (row["busy_ns"], row["network_ns"]) == (S, 0)


def test_of_many_connections_those_that_carried_most_have_rows_and_the_others_are_counted():
    begin = [OPENED._replace(local=f"a:{n}") for n in range(MOST_ROWS + 10)]
    end = [connection._replace(acknowledged=(n + 1) * MB) for n, connection in enumerate(begin)]
    rows, left_out = sampled(begin, end)
    assert (len(rows["p"]), left_out) == (MOST_ROWS, 10)
    assert min(row["bytes"] for row in rows["p"]) == 11 * MB


def test_stalled_paths_have_rows_beside_many_connections_that_carry_more():
    begin = [OPENED._replace(local=f"a:{n}") for n in range(MOST_ROWS + 10)]
    end = [connection._replace(acknowledged=(n + 9) * MB) for n, connection in enumerate(begin)]
    end[0] = begin[0]._replace(busy_us=900_000, queued=5_000)
    rows, left_out = sampled(begin, end)
    assert (len(rows["p"]), left_out) == (MOST_ROWS, 10)
    assert rows["p"][-1]["local"] == "a:0"


@pytest.mark.parametrize("moving", [0, 10, MOST_ROWS])
def test_of_many_stalled_paths_none_has_two_rows(moving):
    begin = [OPENED._replace(local=f"a:{n}") for n in range(MOST_ROWS + 44)]
    end = [of._replace(acknowledged=MB) for of in begin[:moving]]
    end += [of._replace(busy_us=900_000, queued=5_000) for of in begin[moving:]]
    rows, left_out = sampled(begin, end)
    assert (len({row["local"] for row in rows["p"]}), left_out) == (MOST_ROWS, 44)


def test_a_row_names_the_interface_that_has_its_address():
    rates = ConnectionRates()
    rates.take(S, OWNERS)
    for acknowledged in (0, MB):
        rates.refresh([OPENED._replace(acknowledged=acknowledged)])
        rows, _ = rates.take((2 + acknowledged) * S, OWNERS, {"a": "eth1", "b": "eth9"})
    assert rows["p"][0]["nic"] == "eth1"
