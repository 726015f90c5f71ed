"""A check of pairs by threads of this process, over real sockets of the loopback: who comes, who does not, who may."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from drumline.producers.pairs import participant
from drumline.producers.pairs.acceptor import Acceptor
from drumline.producers.pairs.channel import connect, listen
from drumline.producers.pairs.participant import KeyRejected, NoResult, check_pairs
from drumline.producers.pairs.roster import Roster

SECRET = b"of the hosts only"
NAMES = tuple("abcd")


@pytest.fixture
def port():
    with listen("127.0.0.1", 0) as listener:
        return listener.getsockname()[1]


def check(port, present, secrets=None, wait_s=20.0, count=4):
    """Return result or error of each host that comes, by index."""

    def attempt(index):
        try:
            secret = (secrets or {}).get(index, SECRET)
            return check_pairs(Roster(NAMES[:count], index, "127.0.0.1"), secret, NAMES[index], port, wait_s)
        except NoResult as error:
            return error

    with ThreadPoolExecutor(len(present)) as pool:
        return dict(zip(present, pool.map(attempt, present), strict=True))


def test_all_pairs_are_measured_and_every_host_gets_the_same_result(port):
    results = check(port, range(4))
    assert all(result == results[0] for result in results.values())
    assert sorted((pair.first, pair.second) for pair in results[0].pairs) == [
        (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)
    ]  # fmt: skip
    for pair in results[0].pairs:
        assert not pair.problem
        assert min(pair.forth, pair.back) > 1e6
        assert 0 < pair.trip_s < 0.1


def test_one_host_has_no_pairs(port):
    [result] = check(port, [0], count=1).values()
    assert (result.pairs, result.findings) == ([], [])


def test_a_host_that_does_not_come_is_named_by_the_deadline_and_the_others_are_measured(port):
    begin = time.monotonic()
    results = check(port, [0, 1, 3], wait_s=2.0)
    assert time.monotonic() - begin < 30
    for result in results.values():
        missing = [finding for finding in result.findings if finding.kind == "missing"]
        assert [(of.hosts, of.text) for of in missing] == [((2,), "c: did not come within 2 s")]
        assert len(result.pairs) == 3


def test_without_the_first_host_each_names_it_by_the_deadline(port):
    begin = time.monotonic()
    results = check(port, [1, 2], wait_s=1.5)
    assert time.monotonic() - begin < 15
    assert all("a did not come within 2 s" in str(error) for error in results.values())


def test_a_host_with_another_secret_learns_so_and_counts_as_missing(port):
    results = check(port, range(3), {2: b"some other secret"}, wait_s=2.0, count=3)
    assert isinstance(results[2], KeyRejected)
    assert str(results[2]) == "a: the other end has another secret, job or list of hosts"
    assert [finding.hosts for finding in results[0].findings if finding.kind == "missing"] == [(2,)]


def test_a_second_process_of_a_host_ends_with_the_reason_and_leaves_the_check_as_it_is(port):
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(check, port, [0, 1], wait_s=4.0, count=3)
        time.sleep(1.0)
        second = check(port, [1], count=3)
        assert str(second[1]) == "host 1 of 3 has registered already"
        assert len(first.result(60)[0].pairs) == 1


def test_a_host_of_another_job_is_refused_with_the_same_secret_and_hosts(port):
    rosters = [Roster(NAMES[:2], index, "127.0.0.1", job) for index, job in enumerate(("7", "8"))]
    with ThreadPoolExecutor(2) as pool:
        first, other = (pool.submit(check_pairs, of, SECRET, NAMES[of.index], port, 2.0) for of in rosters)
        assert [finding.kind for finding in first.result(30).findings] == ["missing"]
        with pytest.raises(KeyRejected):
            other.result(30)


def test_the_name_that_a_host_gives_itself_does_not_replace_that_of_the_roster(port):
    with ThreadPoolExecutor(2) as pool:
        rosters = [Roster(NAMES[:2], index, "127.0.0.1") for index in range(2)]
        of = [pool.submit(check_pairs, roster, SECRET, "someone else", port, 20.0) for roster in rosters]
        assert list(of[0].result(30).names) == ["a", "b"]


def test_who_has_no_secret_or_is_silent_does_not_get_a_channel():
    with Acceptor(listen("127.0.0.1", 0), SECRET) as acceptor, ThreadPoolExecutor(1) as pool:
        place = acceptor.listener.getsockname()
        accepted = pool.submit(acceptor.accept, time.monotonic() + 20)
        with socket.create_connection(place) as silent, socket.create_connection(place) as noisy:
            noisy.sendall(b'{"index": 0}\n' * 1000)
            known = connect(*place, SECRET, time.monotonic() + 20)
            channel = accepted.result(20)
            known.send({"a": 1}, time.monotonic() + 5)
            assert channel.receive(time.monotonic() + 5) == {"a": 1}
            assert silent.recv(100), "it got a number to prove the secret with"
            known.close()
            channel.close()


def test_many_silent_connections_do_not_keep_a_host_from_its_proof():
    with Acceptor(listen("127.0.0.1", 0), SECRET) as acceptor, ThreadPoolExecutor(1) as pool:
        place = acceptor.listener.getsockname()
        silent = [socket.create_connection(place) for _ in range(40)]
        accepted = pool.submit(acceptor.accept, time.monotonic() + 20)
        connect(*place, SECRET, time.monotonic() + 20).close()  # without a second try
        accepted.result(20).close()
        for created in silent:
            created.close()


def test_a_message_that_does_not_come_ends_at_the_deadline():
    with Acceptor(listen("127.0.0.1", 0), SECRET) as acceptor, ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(acceptor.accept, time.monotonic() + 20)
        known = connect(*acceptor.listener.getsockname(), SECRET, time.monotonic() + 20)
        with pytest.raises(TimeoutError):
            known.receive(time.monotonic() + 0.2)
        known.close()
        accepted.result(20).close()


def test_ctrl_c_on_the_first_host_ends_at_once_and_frees_the_port(port, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(participant, "_take_part", interrupt)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        check_pairs(Roster(NAMES, 0, "127.0.0.1"), SECRET, "a", port, 5.0)
    assert time.monotonic() - begin < 4, "it waited for hosts"
    listen("127.0.0.1", port).close()
