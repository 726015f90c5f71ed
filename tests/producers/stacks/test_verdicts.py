"""Records of verdicts ask for samplings: ranks that stall on their host or stand still, and a healthy peer."""

import json

import numpy as np
import pytest

from drumline.producers.stacks.verdicts import (
    LONGEST_STEP_NS,
    READERS,
    SHOWN_BY_STACKS,
    SUSPECT,
    SUSPECTED_OF,
    WARNING,
    hang,
    straggler,
)
from drumline.schemas.batch import Batch, dictionary
from drumline.schemas.topics import DERIVED_TOPICS, Topic
from drumline.streams.core.thresholds import WARNING as STREAMS_WARNING
from drumline.streams.stragglers.analysis import cause, rank_naming


def record(*rows, evidence="{}", **envelope):
    """`rows`: (rank, severity, cause, lost_ns, host). `evidence`: of the last one."""
    ranks, severities, causes, lost, hosts = zip(*rows, strict=True)
    names, host = dictionary(hosts)
    kinds, cause = dictionary(causes)
    window = {"first_step": 20, "last_step": 39, "window_start_ns": 5, "evidence": ["{}", evidence], "step_ns": 50}
    columns = {"rank": ranks, "severity": severities, "lost_ns": lost, "host": host, "cause": cause,
               "evidence_json": [*[0] * (len(rows) - 1), 1]}  # fmt: skip
    return Batch(
        Topic.STRAGGLER, {"job": "j", "run": "r", "hosts": names, "causes": kinds, **window, **envelope},
        {name: np.array(values) for name, values in columns.items()},
    )  # fmt: skip


def test_the_severity_is_the_stream_processors():
    assert WARNING == STREAMS_WARNING
    assert SUSPECTED_OF == rank_naming.SUSPECTED_OF
    assert {cause.HOST_STALL, cause.UNKNOWN} == SHOWN_BY_STACKS
    assert set(READERS) <= DERIVED_TOPICS


def test_a_stalled_rank_is_named_and_a_healthy_rank_of_its_host_is_the_peer():
    verdict = straggler(record((-1, 2, "ok", 9, ""), (0, 0, "ok", 0, "a"), (1, 0, "ok", 0, "b"), (2, 0, "ok", 0, "b"),
                               (3, 2, "host_stall", 7, "b")), 12.5)  # fmt: skip
    assert (verdict.named, verdict.peer, verdict.at_s) == ((3,), 1, 12.5)
    assert (verdict.first_step, verdict.last_step, verdict.window_start_ns) == (20, 39, 5)


def test_a_healthy_rank_of_its_communicator_is_the_peer_where_the_verdict_names_some():
    rows = ((1, 0, "ok", 0, "b"), (2, 0, "ok", 0, "a"), (3, 2, "host_stall", 7, "b"))
    assert straggler(record(*rows, evidence='{"peers": [0, 2]}'), 0).peer == 2


def test_the_two_ranks_that_cost_most_are_named_and_no_late_rank_is_a_peer():
    verdict = straggler(record((0, 1, "host_stall", 3, "a"), (1, 3, "host_stall", 5, "a"), (2, 2, "host_stall", 9, "a"),
                               (3, 2, "host_stall", 4, "a"), (4, 0, "ok", 0, "b")), 0)  # fmt: skip
    assert (verdict.named, verdict.peer) == ((2, 1), 4)


def test_without_a_healthy_rank_there_is_no_peer():
    assert straggler(record((0, 2, "host_stall", 3, "a"), (1, -1, "insufficient_data", 0, "a")), 0).peer == -1


@pytest.mark.parametrize(
    "row", [(0, 1, "host_stall", 3, "a"), (0, 3, "slow_compute", 3, "a"), (-1, 3, "host_stall", 3, ""),
            (0, 0, "ok", 0, "a")],
)  # fmt: skip
def test_what_stacks_do_not_explain_asks_for_nothing(row):
    assert straggler(record(row), 0) is None


def suspect_record(*ranks, **envelope):
    """`ranks`: (evidence, host) of each."""
    evidence, place = dictionary(json.dumps(of) for of, _ in ranks)
    hosts, host = dictionary(of for _, of in ranks)
    rows = [(rank, 0, "ok", 0, "") for rank in range(len(ranks))]
    batch = record(*rows, **envelope)
    batch.envelope.update(evidence=evidence, hosts=hosts)
    batch.columns.update(evidence_json=np.array(place), host=np.array(host))
    return batch


def suspected(odds, of="host_stall", **more):
    return {"explained_by": "chance", "odds": odds, SUSPECTED_OF: of, **more}


def test_the_suspect_with_the_largest_odds_is_sampled_beside_a_rank_that_is_none():
    verdict = straggler(suspect_record((suspected(4), "a"), (suspected(9), "b"), ({}, "a"), ({}, "b")), 7.0)
    assert (verdict.kind, verdict.named, verdict.peer, verdict.odds, verdict.step_ns) == (SUSPECT, (1,), 3, 9.0, 50)
    assert (verdict.first_step, verdict.window_start_ns, verdict.at_s) == (20, 5, 7.0)


def test_the_peer_of_a_suspect_is_one_that_it_was_compared_with():
    assert straggler(suspect_record((suspected(4, peers=[2]), "a"), ({}, "a"), ({}, "b")), 0).peer == 2


@pytest.mark.parametrize("ranks", [
    [(suspected(4, of="slow_gpu"), "a"), ({}, "a")],  # stacks do not show it
    [(suspected(4), "a"), (suspected(5), "a")],  # no peer
    [(suspected(4, pipeline="0 1"), "a"), ({}, "a")],  # the other rank runs another stage
    [({"explained_by": "chance", "odds": 2}, "a"), ({}, "a")],
    [({SUSPECTED_OF: "host_stall", "odds": "many"}, "a"), ({}, "a")],
])  # fmt: skip
def test_what_an_inspection_cannot_decide_asks_for_none(ranks):
    assert straggler(suspect_record(*ranks), 0) is None


def test_a_job_with_longer_steps_is_named_by_its_lateness_alone():
    ranks = (suspected(4), "a"), ({}, "a")
    assert straggler(suspect_record(*ranks, step_ns=LONGEST_STEP_NS), 0) is not None
    assert straggler(suspect_record(*ranks, step_ns=LONGEST_STEP_NS + 1), 0) is None


def test_a_named_rank_comes_before_a_suspect():
    batch = suspect_record((suspected(4), "a"), ({}, "a"), ({}, "a"))
    batch.columns["severity"] = np.array([0, 2, 0])
    batch.envelope["causes"], batch.columns["cause"] = ["host_stall"], np.zeros(3, int)
    assert (straggler(batch, 0).kind, straggler(batch, 0).named) == ("straggler", (1,))


def standstill(state="standing", rows=((-1, "not_called"), (1, "not_called")), world_size=4):
    reasons, reason = dictionary(text for _, text in rows)
    envelope = {"job": "j", "run": "r", "state": state, "start_ns": 77, "world_size": world_size, "reasons": reasons}
    columns = {"rank": np.array([rank for rank, _ in rows]), "reason": np.array(reason)}
    return Batch("gpu.hang.v1", envelope, columns)


@pytest.mark.parametrize("state", ["standing", "hung"])
def test_a_rank_that_others_wait_for_is_named_and_the_lowest_other_rank_is_the_peer(state):
    verdict = hang(standstill(state), 3.0)
    assert (verdict.kind, verdict.named, verdict.peer, verdict.window_start_ns) == ("hang", (1,), 0, 77)
    assert hang(standstill(rows=((0, "mismatch"), (1, "mismatch"), (2, "mismatch"))), 0).named == (0, 1)
    assert hang(standstill(rows=((0, "mismatch"), (1, "mismatch"))), 0).peer == 2


@pytest.mark.parametrize(
    "batch", [standstill(rows=((1, "gone"),)), standstill(rows=((-1, "x"),)), standstill(rows=((1, ""),))],
)  # fmt: skip
def test_a_process_that_exited_is_not_sampled_and_ras_is_read_at_both_ends_of_the_job(batch):
    verdict = hang(batch, 0)
    assert (verdict.named, verdict.requesting) == ((), (0, 3))


@pytest.mark.parametrize("state", ["moving", "over"])
def test_a_job_that_moves_asks_for_nothing(state):
    assert hang(standstill(state), 0) is None


def test_ras_is_read_where_named_ranks_are_and_the_first_and_last_of_the_others():
    assert hang(standstill(rows=((3, "not_called"),), world_size=16_384), 0).requesting == (3, 0, 16_383)
    assert hang(standstill(rows=((0, "mismatch"), (1, "mismatch"))), 0).requesting == (0, 1, 2, 3)
    assert hang(standstill(rows=((0, "mismatch"), (1, "mismatch")), world_size=2), 0).requesting == (0, 1)
