"""Each way to hang names the ranks that are waited for, the operation, and the reason; a rank that waits is never
named."""

from __future__ import annotations

import pytest
from support.standing_job import BEGIN, SECOND, Job

WORLD = {"c0": [0, 1, 2, 3]}
MESH = {"t0": [0, 1], "t1": [2, 3], "d0": [0, 2], "d1": [1, 3]}


def stall(job, kind, rank=1):
    """Let a rank stall in a way; of those that Python shows apart (stacks), NCCL sees the same."""
    culprit = job.ranks[rank]
    if kind in ("sleep", "lock", "loader", "exception"):
        culprit.host_stalls = True
    elif kind == "stop":
        culprit.state = "stopped"
    elif kind == "kill":
        culprit.state = "killed"
    elif kind == "exit":
        culprit.state = "exited"
    elif kind == "operation":
        culprit.plan = [(name, ("AllGather", *rest)) for name, (_, *rest) in culprit.plan]
    elif kind == "size":
        culprit.plan = [(name, (function, datatype, 2_000)) for name, (function, datatype, _) in culprit.plan]
    elif kind == "gpu":
        culprit.gpu_stalls = True


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sleep", "not_called"), ("lock", "not_called"), ("loader", "not_called"), ("exception", "not_called"),
        ("stop", "stopped"), ("kill", "gone"), ("exit", "gone"), ("gpu", "not_started"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("groups", [WORLD, MESH], ids=["world", "mesh"])
def test_the_rank_that_stalls_is_named_and_no_other(kind, reason, groups):
    job = Job(groups).run_for(30)
    assert job.rows == []
    stall(job, kind)
    job.run_for(12)
    assert list(job.named) == [1]
    named, operation, number = job.named[1]
    assert (named, operation, number) == (reason, "AllReduce", 31)
    whole = job.rows[-1][0]
    assert (whole["rank"], whole["state"], whole["reason"], whole["operation"]) == (-1, "standing", reason, "AllReduce")
    assert whole["waiting"] >= 1
    assert (whole["time_ns"] - (BEGIN + 30 * SECOND)) <= 12 * SECOND
    assert len(job.rows) == 1
    job.run_for(120)
    assert job.states == ["standing", "hung"]
    assert list(job.named) == [1]


@pytest.mark.parametrize(
    ("kind", "reason"), [("sleep", "not_called"), ("stop", "stopped"), ("kill", "gone"), ("exit", "gone")]
)
@pytest.mark.parametrize("groups", [WORLD, MESH], ids=["world", "mesh"])
def test_the_rank_that_stalls_is_named_while_nccl_does_not_measure(kind, reason, groups):
    job = Job(groups).run_for(29)
    job.measured = False
    job.run_for(1)
    stall(job, kind)
    job.run_for(12)
    assert job.named == {1: (reason, "AllReduce", 31)}


def test_a_pause_of_all_ranks_while_nccl_does_not_measure_names_no_rank():
    job = Job(WORLD).run_for(30)
    job.measured = False
    for rank in job.ranks.values():
        rank.host_stalls = True
    job.run_for(45)
    assert job.rows == []


@pytest.mark.parametrize(("kind", "size"), [("operation", 1_000), ("size", 2_000)])
@pytest.mark.parametrize("groups", [WORLD, MESH], ids=["world", "mesh"])
def test_another_operation_or_size_names_both_sides(kind, size, groups):
    job = Job(groups).run_for(30)
    stall(job, kind)
    job.run_for(12)
    assert job.named == {
        0: ("mismatch", "AllReduce", 31),
        1: ("mismatch", "AllGather" if kind == "operation" else "AllReduce", 31),
    }
    assert {row["rank"]: row["elements"] for row in job.rows[-1]} | {-1: 0} == {-1: 0, 0: 1_000, 1: size}


def test_a_size_that_one_side_could_end_is_a_mismatch_too():
    job = Job({"c0": [0, 1]}).run_for(30)
    job.ranks[1].comms["c0"].called.append(("AllReduce", "float32", 10))
    job.ranks[1].comms["c0"].begun = job.ranks[1].comms["c0"].ended = 31
    job.run_for(14)
    assert {rank: reason for rank, (reason, _, _) in job.named.items()} == {0: "mismatch", 1: "mismatch"}


def test_two_communicators_called_in_another_order_are_a_deadlock():
    job = Job({"a": [0, 1], "b": [0, 1]}).run_for(30)
    job.ranks[1].plan.reverse()
    job.run_for(12)
    assert {rank: reason for rank, (reason, _, _) in job.named.items()} == {0: "deadlock", 1: "deadlock"}
    assert {row["rank"]: row["communicator"] for row in job.rows[-1][1:]} == {0: "a", 1: "b"}


def test_two_communicators_launched_in_another_order_are_a_deadlock_of_the_gpus():
    job = Job({"a": [0, 1], "b": [0, 1]}).run_for(30)
    for rank in job.ranks.values():
        rank.blocks = False
    job.ranks[1].plan.reverse()
    job.run_for(12)
    assert {rank: reason for rank, (reason, _, _) in job.named.items()} == {0: "deadlock", 1: "deadlock"}


def test_a_rank_that_does_not_end_what_others_ended_is_named():
    job = Job(WORLD).run_for(30)
    for rank in job.ranks.values():
        comm = rank.comms["c0"]
        comm.called.append(("AllReduce", "float32", 1_000))
        comm.begun, comm.ended = 31, 30 if rank.number == 2 else 31
        rank.host_stalls = rank.gpu_stalls = True
    job.run_for(14)
    assert job.named == {2: ("not_ended", "AllReduce", 31)}


def test_an_operation_that_no_rank_ends_names_the_operation_and_no_rank():
    job = Job(WORLD).run_for(30)
    for rank in job.ranks.values():
        comm = rank.comms["c0"]
        comm.called.append(("AllReduce", "float32", 1_000))
        comm.begun = 31
        rank.host_stalls, rank.gpu_stalls = True, True
    job.run_for(125)
    assert job.named == {}
    assert [(row["reason"], row["operation"], row["number"]) for row in job.rows[-1]] == [
        ("not_ended", "AllReduce", 31)
    ]
    assert job.states == ["standing", "hung"]


@pytest.mark.parametrize(
    ("ranks", "link"),
    [
        ([0, 1, 2, 3], "the link between host-0 (ranks 0, 1) and host-1 (ranks 2, 3), or a GPU"),
        ([0, 2], "the link between host-0 (rank 0) and host-1 (rank 2), or a GPU"),
        ([0, 1], "the link between ranks 0 and 1, or a GPU"),
        ([0, 2, 4, 6], "a link, or a GPU"),
    ],
)
def test_the_link_that_an_operation_of_two_hosts_or_ranks_may_wait_for_is_stated(ranks, link):
    job = Job({"c0": ranks}).run_for(30)
    for rank in job.ranks.values():
        comm = rank.comms["c0"]
        comm.called.append(("AllReduce", "float32", 1_000))
        comm.begun = 31
        rank.host_stalls, rank.gpu_stalls = True, True
    job.run_for(12)
    [row] = job.rows[-1]
    assert row["note"].endswith(f"and none ends it: {link}.")
    assert row["time_ns"] - (BEGIN + 30 * SECOND) <= 12 * SECOND


def test_an_operation_that_no_gpu_begins_names_no_rank_and_pages_after_the_setting():
    job = Job(WORLD).run_for(30)
    for rank in job.ranks.values():
        rank.gpu_stalls = True
    job.run_for(119)
    assert (job.states, job.named) == (["standing"], {})
    [whole] = job.rows[-1]
    shown = [whole[name] for name in ("reason", "operation", "number", "waiting")]
    assert shown == ["not_started", "AllReduce", 31, 4]
    assert "no GPU has begun it" in whole["note"]
    job.run_for(5)
    assert (job.states, job.named) == (["standing", "hung"], {})
    for rank in job.ranks.values():
        rank.gpu_stalls = False
    job.run_for(2)
    assert job.states[-1] == "moving"


def test_a_receive_names_the_end_of_the_chain_of_senders():
    job = Job({"p": [0, 1, 2]}).run_for(30)
    for rank in job.ranks.values():
        rank.host_stalls = True
    job.ranks[2].peers, job.ranks[1].peers = [("p", 1, "Recv")], [("p", 0, "Recv")]
    job.run_for(14)
    assert job.named == {0: ("not_called", "Recv", 0)}


def unmeasured(*peers, exact=1):
    """Return a job of three ranks whose hosts call nothing more, with numbers of sends and receives: rank, peer, ..."""
    job = Job({"p": [0, 1, 2]}).run_for(30)
    for rank in job.ranks.values():
        rank.host_stalls, rank.comms["p"].exact = True, exact
    for number, *peer in peers:
        job.ranks[number].peers.append(("p", *peer))
    return job.run_for(14)


@pytest.mark.parametrize(
    ("peers", "named"),
    [
        ([(0, 1, "Send", 9), (1, 0, "Recv", 8), (1, 2, "Send", 8), (2, 1, "Recv", 9)], {1: ("not_called", "Send", 0)}),
        ([(0, 1, "Send", 9), (1, 0, "Recv", 9), (1, 2, "Send", 8), (2, 1, "Recv", 9)], {1: ("not_called", "Recv", 0)}),
        ([(2, 1, "Recv", 1), (1, 0, "Recv", 1)], {0: ("not_called", "Recv", 0)}),  # it has called none
        # Rank 0 has gone on: what it sent lies in a buffer. Rank 1 waits for 2, and 2 for 0.
        ([(0, 1, "Send", 9), (1, 0, "Recv", 8), (1, 2, "Recv", 9), (2, 1, "Send", 8), (2, 0, "Recv", 9),
          (0, 2, "Send", 8)], {0: ("not_called", "Recv", 0)}),
    ],
)  # fmt: skip
def test_sends_and_receives_that_nccl_does_not_measure_name_by_their_numbers(peers, named):
    peers = peers if len(peers) > 2 else [*peers, (0, 2, "Send", 4), (2, 0, "Recv", 4), (1, 2, "Send", 1)]
    assert unmeasured(*peers).named == named


def test_sends_and_receives_that_are_all_answered_or_not_counted_name_no_rank():
    assert unmeasured((0, 1, "Send", 9), (1, 0, "Recv", 9), (1, 2, "Recv", 5), (2, 1, "Send", 5)).rows == []
    assert unmeasured((0, 1, "Send", 9), (1, 0, "Recv", 8), exact=0).rows == []
    assert unmeasured((0, 1, "Recv", 9)).rows == []  # of rank 1 nothing is counted


def test_a_rank_that_counts_not_all_of_its_peers_is_not_named_for_those_without_a_row():
    hub, answered = (0, 1, "Send", 9, 0), (1, 0, "Recv", 9)  # its sends to rank 2 have no row
    hung = unmeasured(hub, answered, (2, 0, "Recv", 9), (2, 1, "Recv", 9), (1, 2, "Send", 8))
    assert hung.named == {1: ("not_called", "Recv", 0)}
    unknown = unmeasured(hub, answered, (2, 0, "Recv"))
    assert (unknown.named, unknown.rows[-1][0]["reason"]) == ({}, "insufficient_data")


def test_ranks_that_nothing_is_known_of_are_insufficient_data_and_pages_all_the_same():
    job = Job(WORLD)
    job.ranks[1].silent = job.ranks[3].silent = True
    job.run_for(30)
    job.ranks[1].host_stalls = True
    job.run_for(12)
    assert job.named == {}
    assert [row["reason"] for row in job.rows[-1]] == ["insufficient_data"]
    assert "the progress of 2 of its 4 ranks is known" in job.rows[-1][0]["note"]
    job.run_for(120)
    assert job.states[-1] == "hung"


def test_operations_that_were_not_counted_are_compared_by_being_open():
    job = Job(WORLD).run_for(30)
    for rank in job.ranks.values():
        rank.comms["c0"].exact = 0
    stall(job, "sleep")
    job.run_for(12)
    assert job.named == {1: ("not_called", "AllReduce", 0)}
