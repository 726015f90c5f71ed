"""Connections of a recorded process of this host, from the kernel to the spool."""

import os
import resource
import socket
import subprocess
import sys
import time

import pytest
from support import connection_sender
from support.connection_sender import RECORD, certain
from support.namespaces import hosts
from support.wait_limit import WAIT_S

from drumline.producers.host.targets import RecordedProcess
from drumline.producers.network import connection_sampler
from drumline.producers.network.connection_sampler import ConnectionBatches, ConnectionSampler
from drumline.producers.network.socket_owners import SocketOwners
from drumline.schemas.batch import decode, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

SINK = """
import socket, sys
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
connection, _ = server.accept()
while connection.recv(1 << 20):
    pass
"""

#: Name of this process.
THIS_PROCESS = f"{os.geteuid()}:p"


def test_sockets_of_a_process_are_known_by_its_files():
    owners = SocketOwners()
    with socket.socket() as opened:
        owners.follow([certain(os.getpid())])
        assert owners.owners[os.fstat(opened.fileno()).st_ino] == [THIS_PROCESS]
    owners.follow([])
    assert (owners.owners, owners.left_out) == ({}, 0)


def fake_process(proc, pid, start, inode):
    """Make what /proc shows of a process with one socket, in place of another with its number."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True, exist_ok=True)
    (folder / "stat").write_text(f"{pid} (python) S{' 0' * 18} {start}{' 0' * 30}")
    (folder / "fd" / "3").unlink(missing_ok=True)
    (folder / "fd" / "3").symlink_to(f"socket:[{inode}]")
    for name in (str(pid), "self"):
        (proc / name / "ns").mkdir(parents=True, exist_ok=True)
        (proc / name / "ns" / "net").unlink(missing_ok=True)
        (proc / name / "ns" / "net").symlink_to("net:[1]")


def test_a_number_that_another_process_has_since_keeps_no_owner(tmp_path):
    owners, process = SocketOwners(tmp_path), RecordedProcess(RECORD, 71, os.geteuid(), 900)
    fake_process(tmp_path, 71, 900, 5)
    owners.follow([process])
    assert owners.owners == {5: [THIS_PROCESS]}
    fake_process(tmp_path, 71, 1100, 6)
    owners.follow([process])
    assert (owners.owners, owners.left_out) == ({}, 1)


def test_a_process_that_is_not_there_is_counted():
    owners = SocketOwners()
    owners.follow([RecordedProcess(RECORD, os.getpid(), os.geteuid(), 1)])
    assert (owners.owners, owners.left_out) == ({}, 1)


def test_a_second_source_of_a_process_is_followed_where_the_first_cannot_be_read():
    owners = SocketOwners()
    with socket.socket() as opened:
        for _ in range(2):
            owners.follow(
                [RecordedProcess(RECORD | {"process_id": "q"}, os.getpid(), os.geteuid(), 1), certain(os.getpid())]
            )
            assert owners.owners[os.fstat(opened.fileno()).st_ino] == [THIS_PROCESS]
            assert owners.left_out == 0


def test_a_process_of_another_user_with_the_same_rank_or_id_keeps_none_from_being_followed():
    if os.geteuid():
        pytest.skip("processes of other users need root")
    owners, uid = SocketOwners(), 65_534
    with subprocess.Popen(["sleep", "60"], user=uid) as other:
        try:
            start = certain(other.pid).start_ticks
            foreign = (RecordedProcess(RECORD | {"rank": rank, "process_id": name}, other.pid, uid, start)
                      for rank, name in ((3, "q"), (4, "p")))  # fmt: skip
            owners.follow([*foreign, certain(os.getpid())])
        finally:
            other.kill()
    assert (set(owners.processes), owners.left_out) == ({f"{uid}:q", f"{uid}:p", THIS_PROCESS}, 0)


def test_a_process_is_followed_again_when_the_agent_has_descriptors_again():
    owners, process, limits = SocketOwners(), certain(os.getpid()), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        owners.follow([process])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (owners.owners, owners.left_out) == ({}, 1)
    owners.follow([process])
    assert (set(owners.processes), owners.left_out) == ({THIS_PROCESS}, 0)


def test_slow_answers_of_the_kernel_take_a_small_part_of_the_time(monkeypatch):
    began = []

    def read_slowly(owners):
        began.append(time.monotonic())
        time.sleep(0.1)
        return []

    monkeypatch.setattr(connection_sampler, "read_connections", read_slowly)
    with socket.socket():
        sampler = ConnectionSampler(None, ConnectionBatches("agent", "node"), lambda: [certain(os.getpid())], 0.1)
        sampler.start()
        until = time.monotonic() + WAIT_S
        while len(began) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        sampler.stop()
    assert began[1] - began[0] >= 0.1 / connection_sampler.MOST_SHARE


def test_a_process_in_another_network_namespace_is_counted():
    if os.geteuid():
        pytest.skip("network namespaces need root")
    with hosts(["node"]) as of:
        owners = SocketOwners()
        owners.follow([certain(of.of["node"].pid)])
        assert (owners.owners, owners.left_out) == ({}, 1)


def test_a_batch_is_within_the_contract():
    row = {"start_ns": 10**18, "duration_ns": 10**9, "local": "a:1", "remote": "b:2", "direction": "receive",
           "communicator": "", "nic": "", "comm_rank": -1, "peer": -1, "slowest_channel": -1, "first_step": -1,
           "last_step": -1, "bytes": 5, "retransmitted": -1, "delivery_rate": -1}  # fmt: skip
    batches = ConnectionBatches("agent", "node")
    for sequence in range(2):
        key, batch = batches.batch(RECORD, [row, row])
        assert batch.envelope["watermark_ns"] == 10**18, "later batches may start there"
        check(batch, int(batch.envelope["sent_ns"]) // 10**6)
        known = decode(model(Topic.TRANSFER), encode(model(Topic.TRANSFER), batch))
        assert (key, known.rows, known.envelope["sequence"], known.envelope["rank"]) == ("job", 2, sequence, 3)
        assert known.strings("remote", "remotes").tolist() == ["b:2", "b:2"]


def test_what_a_process_sends_to_another_host_is_in_the_spool():
    if os.geteuid():
        pytest.skip("network namespaces need root")
    with hosts(["a", "b"]) as of:
        address = [of.address("b", "a"), "7001"]
        of.limit("a", "b", 5e6)
        sink = subprocess.Popen([*of.inside("b"), sys.executable, "-c", SINK, *address])
        try:
            sender = subprocess.run(
                [*of.inside("a"), sys.executable, connection_sender.__file__, *address, "3"],
                capture_output=True, text=True, timeout=WAIT_S,
            )  # fmt: skip
        finally:
            sink.kill()
            sink.wait()
    lines = [line.split() for line in sender.stdout.splitlines()]
    assert len(lines) >= 3, sender.stderr
    for key, rank, direction, remote, nic, *_ in lines:
        assert (key, rank, direction, remote, nic) == ("job", "3", "send", ":".join(address), of.end("a", "b"))
    size, rates, network_ns = (sorted(int(line[at]) for line in lines[1:]) for at in (5, 6, 7))
    middle = len(size) // 2
    assert 3e6 <= rates[middle] <= 1e7
    assert size[middle] / network_ns[middle] < 2 * 5e6 / 1e9
