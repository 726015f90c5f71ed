"""Pipeline jobs: unequal stages and their bubbles name no rank, a late rank is found and its upstream is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.labs.attribution import CAUSES, evaluated, named_ranks
from support.labs.lateness import matched, rows
from support.labs.verdict_rows import rows_of
from support.pipeline_simulator import simulate_pipeline
from support.straggler_simulator import MS, Fault, batches

from drumline.streams.core.thresholds import INSUFFICIENT, OK
from drumline.streams.lateness.collective_join import point_to_point
from drumline.streams.lateness.collective_rows import EXCHANGE, LOCKSTEP, PIPELINE, POINT_TO_POINT
from drumline.streams.stragglers.analysis import slow_link
from drumline.streams.stragglers.analysis.pipelines import pipeline_stages

pytestmark = pytest.mark.traces
UNEQUAL = (1.0, 1.3, 0.8, 1.1)


@pytest.mark.parametrize("world", [False, True])
@pytest.mark.parametrize("one_communicator", [False, True])
@pytest.mark.parametrize("replicas", [2, 3])
def test_unequal_stages_are_no_stragglers(replicas, one_communicator, world):
    job = simulate_pipeline(UNEQUAL, replicas, 24, world=world, one_communicator=one_communicator)
    assert all(row[0] == OK for rows in evaluated(batches(job)).values() for row in rows.values())


def costly(fault, replicas, steps, **shape):
    """The job with the fault, and the share it really lost: a stage that is not the slowest has time to spare."""
    job, healthy = (simulate_pipeline(UNEQUAL, replicas, steps, f, **shape) for f in ((fault,), ()))
    last = slice(fault.first, None)
    took, baseline = (sum(row["duration_ns"] for row in j.steps[0][last]) for j in (job, healthy))
    return job, 1 - baseline / took


@given(st.integers(0, 7), st.sampled_from(sorted(CAUSES)), st.floats(0.1, 1.0), st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_late_rank_of_a_replicated_stage_is_found_alone(rank, kind, cost, world, one_communicator):
    fault = Fault(rank, kind, int(cost * 60 * MS))
    job, lost = costly(fault, 2, 24, world=world, one_communicator=one_communicator)
    for named in named_ranks(evaluated(batches(job))):
        assert named == {rank: CAUSES[kind]} if lost > 0.05 else named.keys() <= {rank}


@given(st.integers(0, 3), st.sampled_from(sorted(CAUSES)), st.floats(0.1, 1.0), st.booleans())
@settings(max_examples=15, deadline=None)
def test_without_replicas_a_rank_is_compared_with_its_own_past(rank, kind, cost, world):
    fault = Fault(rank, kind, int(cost * 60 * MS), first=60)
    job, lost = costly(fault, 1, 84, world=world)
    result = evaluated(batches(job))
    learning = list(result.values())[:3]
    assert all(row[0] == INSUFFICIENT for rows in learning for r, row in rows.items() if r >= 0)
    assert named_ranks(result)[:5] == [{}] * 5
    for named in named_ranks(result)[5:]:
        assert named == {rank: CAUSES[kind]} if lost > 0.05 else named.keys() <= {rank}


@pytest.mark.parametrize("seed", [0, 2])
def test_without_replicas_drift_between_windows_is_noise(seed):
    """In each window some rank is late by another time, now and then by more than ever before."""
    random = np.random.default_rng(seed)
    faults = tuple(
        Fault(int(random.integers(2)), "idle", int(random.uniform(0, 25) * MS), first=first, last=first + 11)
        for first in range(0, 240, 12)
    )
    result = evaluated(batches(simulate_pipeline((1.0, 1.2), 1, 240, faults, noise=0.1)))
    assert len([named for named in named_ranks(result) if named]) <= 2, "of 20"


@pytest.mark.parametrize(
    ("kind", "cause"), [("idle", "host_stall"), ("copy", "slow_copy"), ("compute", "slow_compute")]
)
@pytest.mark.parametrize("stage", [0, 1])
def test_a_whole_stage_late_together_is_found_against_its_past_and_named_as_a_group(stage, kind, cause):
    """Each of its ranks is as fast as those that it is compared with."""
    late = (2 * stage, 2 * stage + 1)
    faults = tuple(Fault(rank, kind, 50 * MS, first=72) for rank in late)
    late_job, healthy = (simulate_pipeline(UNEQUAL, 2, 84, planted, noise=0.001) for planted in (faults, ()))
    grew = sum(
        row["duration_ns"] - was["duration_ns"] for row, was in zip(late_job.steps[7], healthy.steps[7], strict=True)
    )
    job = batches(late_job)
    assert named_ranks(evaluated(job)) == [{}] * 6 + [dict.fromkeys(late, cause)]
    assert {rows_of(job, "group", "groups")[72][rank] for rank in late} == {f"communicator c{late}"}
    assert sum(rows_of(job, "gpu_seconds_lost")[72].values()) == pytest.approx(6 * grew / 1e9, rel=0.1)


@pytest.mark.parametrize("kind", ["work", "compute"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_longer_sequences_make_the_largest_stage_no_straggler(replicas, kind):
    """It takes as much longer as all others do, in proportion."""
    faults = (
        Fault(rank, kind, int(0.5 * 60 * MS * UNEQUAL[rank // replicas]), first=72) for rank in range(4 * replicas)
    )
    result = evaluated(batches(simulate_pipeline(UNEQUAL, replicas, 96, tuple(faults))))
    assert named_ranks(result) == [{}] * 8
    first = ["insufficient_data" if replicas == 1 else "ok"] * 3
    assert [rows[-1][1] for rows in result.values()] == [*first, *["ok"] * 3, *["changed_job"] * 2]


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_that_got_more_work_is_a_changed_job(stage):
    """Layers may have been moved to it."""
    faults = tuple(Fault(rank, "work", 50 * MS, first=72) for rank in (2 * stage, 2 * stage + 1))
    result = evaluated(batches(simulate_pipeline((1.0, 1.0), 2, 84, faults)))
    assert named_ranks(result) == [{}] * 7
    assert result[72][-1][1] == "changed_job"


def test_what_one_sends_the_other_receives():
    sends, receives = (
        rows([5, 5], operation=[1, 2], lockstep=POINT_TO_POINT),
        rows([5, 5], operation=[2, 1], lockstep=2),
    )
    assert point_to_point({0: sends, 1: receives}) == PIPELINE
    assert point_to_point({0: sends, 1: sends}) == EXCHANGE
    assert point_to_point({0: sends, 1: rows([5], operation=[2], ordinals=[1], lockstep=2)}) == EXCHANGE
    assert point_to_point({0: sends, 1: rows([5, 5])}) == ""


def test_a_collective_beside_unequal_numbers_of_sends_is_compared():
    first = rows([9, 50], operation=[1, 7], lockstep=[POINT_TO_POINT, LOCKSTEP])
    middle = rows([9, 9, 10], operation=[1, 2, 7], lockstep=[POINT_TO_POINT, POINT_TO_POINT, LOCKSTEP])
    assert matched(0, {0: first, 1: middle}, 2, 0.8)["wait_ns"].tolist() == [40, 0]
    holed = middle[[0, 2]]
    assert matched(0, {0: first, 1: holed}, 2, 0.8)["collectives"].tolist() == [0, 0]


def sets(**groups):
    return {name: frozenset(ranks) for name, ranks in groups.items()}


def test_stages():
    pairs = [frozenset({0, 2}), frozenset({1, 3})]
    inside = sets(a={0, 1}, b={2, 3}, world={0, 1, 2, 3})
    assert pipeline_stages([], inside) is None
    assert pipeline_stages(pairs, inside) == {0: 0, 1: 0, 2: 2, 3: 2}
    assert pipeline_stages([frozenset(range(4))], inside) == {0: 0, 1: 0, 2: 2, 3: 2}
    # the first and last stage of one pipeline share their embeddings
    chain = [frozenset({0, 1}), frozenset({1, 2}), frozenset({2, 3})]
    assert pipeline_stages(chain, sets(tied={0, 3}, world={0, 1, 2, 3})) == {}


def test_lost_rows_do_not_make_a_ring_a_pipeline():
    random, result = np.random.default_rng(0), []
    for _ in range(50):
        ring = {r: rows(np.full(20, 5), operation=[3] * 20, lockstep=POINT_TO_POINT) for r in range(4)}
        result.append(point_to_point({r: row[random.random(20) > 0.1] for r, row in ring.items()}))
    assert set(result) == {EXCHANGE}


@pytest.mark.parametrize("weights", [UNEQUAL, (1.0, 1.0)])
def test_a_slow_link_of_a_pipeline_without_replicas_is_the_jobs_and_names_no_rank(weights):
    """The ranks meet in no collective: what a receiver that waits shows of transfers is all that is known of it."""
    job = simulate_pipeline(weights, 1, 96, transfer_ns=MS, slow_link=(60, 4.0))
    windows = evaluated(batches(job))
    for first, named in zip(windows, named_ranks(windows), strict=True):
        assert named == ({-1: "slow_link"} if first >= 60 else {})


def test_floors_of_more_pairs_than_a_window_keeps_are_none(monkeypatch):
    monkeypatch.setattr(slow_link, "MOST_PAIRS", 1)
    job = batches(simulate_pipeline((1.0, 1.0, 1.0), 1, 96, transfer_ns=MS, slow_link=(60, 4.0)))
    windows = evaluated(job)
    assert [named for named in named_ranks(windows) if "slow_link" in named.values()] == []
    monkeypatch.undo()
    assert {-1: "slow_link"} in named_ranks(evaluated(job))
