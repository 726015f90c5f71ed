"""Waiting that hides in compute: found in the late rank's peers, never held against a rank that waited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.labs.attribution import ANY_LENGTH, CAUSES, LAYOUTS, evaluated, named_ranks
from support.straggler_simulator import MS, Fault, batches, overlapped

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import SUSPECT
from drumline.streams.stragglers.analysis.attribution import attribute_lost_time
from drumline.streams.stragglers.analysis.baseline import STEP
from drumline.streams.stragglers.analysis.overlap import hidden_waiting
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, WindowData
from drumline.streams.stragglers.step_rows import BUDGET

STEPS, LATE = 5, 2
ALL_RANKS = [0, 1, 2, 3]


def group(name: str = "dp", lag: float = 9.0, wait: float = 60.0) -> CommunicatorWindow:
    """Rank 2 was behind by `lag` at most, the others waited `wait` in all."""
    lags, waiting = np.zeros((4, STEPS)), np.full((4, STEPS), wait)
    lags[LATE], waiting[LATE] = lag, 0.0
    worst = np.zeros(4, WORST_ROW)
    return CommunicatorWindow(name, 4, np.arange(4), waiting, lags, worst, lags)


#: One late rank: its peers' kernels shared the GPU with communication for 30 more, and took 8 longer.
LONGER, OVERLAPPED = [58.0, 58.0, 50.0, 58.0], [40.0, 40.0, 10.0, 40.0]
#: The job's step when no rank was late.
BASELINE = {"compute_ns": 51.0, "compute_overlapped_ns": 12.0, "kernels": 10.0, "blocks": 99.0, STEP: 94.0}


def shares(
    compute: list[float] = LONGER,
    overlap: list[float] = OVERLAPPED,
    members: CommunicatorWindow | None = None,
    baseline: dict[str, float] | None = None,
    **more: list[float],
) -> list[float]:
    """Return the lost share of each rank, of steps that take 100."""
    rows = {"compute_ns": compute, "compute_overlapped_ns": overlap, "kernels": [10.0] * 4, "blocks": [99.0] * 4}
    budget = {name: np.zeros((4, STEPS)) for name in BUDGET} | {"gpu_duration_ns": np.full((4, STEPS), 100.0)}
    for name, values in (rows | more).items():
        budget[name][:] = np.array(values)[:, None]
    members = members or group()
    window = WindowData(np.arange(4), np.arange(STEPS), budget, [members])

    def hidden(groups: Sequence[CommunicatorWindow]) -> list[np.ndarray]:
        return hidden_waiting(window, groups, 0.8, 1.01, baseline or {})

    return [round(v, 3) for v in attribute_lost_time(window, 0.8, hidden).share.tolist()]


NO_RANK = [0.0] * 4


def only(share: float) -> list[float]:
    return [0.0, 0.0, share, 0.0]


def test_without_a_past_a_late_rank_shows_in_its_peers_compute():
    assert shares() == only(0.08)


def test_with_a_past_it_costs_what_its_peers_took_longer_than_then():
    assert shares(baseline=BASELINE | {STEP: 90.0}) == only(0.07)


def test_it_costs_no_more_than_the_steps_grew():
    assert shares(baseline=BASELINE) == only(0.06)
    assert shares(baseline=BASELINE | {STEP: 100.0}) == NO_RANK


def test_nor_more_than_it_ever_was_behind():
    """All GPUs slower together, and overlaps that happen to differ, are no rank's."""
    assert shares(baseline=BASELINE, members=group(lag=1.0)) == only(0.01)
    assert shares(members=group(lag=0.0)) == NO_RANK
    assert shares(members=group(lag=-3.0), baseline=BASELINE) == NO_RANK


@pytest.mark.parametrize("baseline", [{}, BASELINE])
def test_where_communicators_are_guessed_ranks_are_measured_by_each_other(baseline):
    """It is unknown which rank was behind there, so the baseline cannot separate slower GPUs from waiting."""
    guessed = group("~7 AllReduce", lag=0.0)
    assert shares(members=guessed, baseline=baseline) == only(0.08)
    assert shares([58.0] * 4, members=guessed, baseline=baseline) == NO_RANK


def test_a_faster_gpu_is_not_late():
    assert shares(overlap=[40.0] * 4) == NO_RANK
    assert shares(overlap=[12.0] * 4, baseline=BASELINE) == NO_RANK


@pytest.mark.parametrize("baseline", [{}, BASELINE | {"blocks": 110.0}])
def test_less_work_is_not_late(baseline):
    assert shares(blocks=[99.0, 99.0, 80.0, 99.0], baseline=baseline) == NO_RANK


def test_a_rank_that_no_peer_waited_for_is_not_late():
    assert shares(members=group(wait=0.0)) == NO_RANK


@pytest.mark.parametrize("baseline", [{}, BASELINE])
def test_who_took_longer_because_it_waited_is_not_late(baseline):
    """Rank 2 waited elsewhere: it has 7 less exposed communication here, but its own kernels took 8 longer for it."""
    exposed = [17.0, 17.0, 10.0, 17.0]
    longer, overlap = [50.0, 50.0, 58.0, 50.0], [10.0, 10.0, 40.0, 10.0]
    assert shares(longer, overlap, comm_exposed_ns=exposed, baseline=baseline) == NO_RANK
    assert shares(longer, [10.0] * 4, comm_exposed_ns=exposed, baseline=baseline) == only(0.07)


def test_who_waited_with_less_work_than_usual_is_not_late():
    """As before, but the time of rank 2 for its own work is unknown: it may all be waiting."""
    exposed, blocks, compute = [17.0, 17.0, 10.0, 17.0], [99.0, 99.0, 80.0, 99.0], [50.0, 50.0, 48.0, 50.0]
    waited = shares(compute, [10.0, 10.0, 40.0, 10.0], comm_exposed_ns=exposed, blocks=blocks, baseline=BASELINE)
    worked = shares(compute, [10.0] * 4, comm_exposed_ns=exposed, blocks=blocks, baseline=BASELINE)
    assert (waited, worked) == (NO_RANK, only(0.07))


def test_ranks_of_a_pipeline_are_left_to_the_other_measure():
    assert shares(members=replace(group(), roles=np.array([0, 0, 2, 2]))) == NO_RANK


#: Ranks late from here on, after as many healthy windows of 12 steps as a baseline needs, until the end.
LATE_FROM, JOB_STEPS = 36, 60
HEALTHY = [{}] * (LATE_FROM // 12)
shapes = st.sampled_from(["ddp4", "fsdp4", "mesh2x2", "mesh2x2-no-world"])
kinds = st.sampled_from(sorted(CAUSES))


def late(rank: int, kind: str, cost: float) -> Fault:
    """`cost`: of the step."""
    return Fault(rank, kind, int(cost * 60 * MS), first=LATE_FROM)


def job(shape, *faults: Fault, seed: int = 0):
    return overlapped(LAYOUTS[shape], JOB_STEPS, faults, seed)


@given(shapes, st.integers(0, 3), kinds, st.floats(0.12, 0.25), st.integers(0, 3))
@settings(max_examples=8, deadline=None)
def test_a_planted_rank_whose_lateness_hides_behind_compute_is_found_and_no_other_rank(shape, rank, kind, cost, seed):
    result = named_ranks(evaluated(batches(job(shape, late(rank, kind, cost), seed=seed))))
    assert result == [*HEALTHY, *[{rank: CAUSES[kind]}] * 2]


@given(shapes, st.permutations(range(4)), st.floats(0.12, 0.2), st.floats(0.6, 1.0))
@settings(max_examples=5, deadline=None)
def test_of_two_planted_ranks_no_other_is_named(shape, order, cost, ratio):
    result = named_ranks(
        evaluated(batches(job(shape, late(order[0], "idle", cost), late(order[1], "copy", cost * ratio))))
    )
    assert result[:3] == HEALTHY
    for window in result[3:]:
        assert {order[0]} <= set(window) <= set(order[:2])


@given(shapes, st.randoms(use_true_random=False), st.integers(2, 1000), st.integers(0, 3))
@settings(max_examples=3, deadline=None)
def test_renaming_ranks_and_scaling_time_change_nothing_that_hides(shape, random, scale, rank):
    recording = job(shape, late(rank, "idle", 0.15))
    order = list(range(4))
    random.shuffle(order)
    plain = evaluated(batches(recording))
    other = evaluated(batches(recording, names=dict(enumerate(order)), scale=scale), ANY_LENGTH)
    assert plain[LATE_FROM][rank][0] > SUSPECT
    for first, rows in plain.items():
        for named, (severity, cause, share) in rows.items():
            same = other[first][order[named] if named >= 0 else named]
            assert same[:2] == (severity, cause)
            assert np.isclose(same[2], share, rtol=0, atol=1e-6)


LOSSES = ("never active", "silent while late", "its collectives while late", "every third batch")


@given(shapes, st.integers(0, 3), st.integers(0, 3), st.sampled_from(LOSSES), kinds, st.floats(0.08, 0.6))
@example("mesh2x2", 0, 0, "every third batch", "compute", 0.5)
@settings(max_examples=10, deadline=None)
def test_a_silent_rank_makes_no_other_rank_named(shape, rank, silent, loss, kind, cost):
    def kept(number, batch):
        behind = batch.columns["step"][0] >= LATE_FROM
        lost = {"never active": True, "silent while late": behind, "every third batch": number % 3 == 0}
        return batch.envelope["rank"] != silent or not lost.get(loss, behind and batch.topic == Topic.COLLECTIVE)

    stream = batches(job(shape, late(rank, kind, cost)))
    result = evaluated(item for number, item in enumerate(stream) if kept(number, item[1]))
    assert result
    assert [named for named in named_ranks(result) if set(named) - {rank}] == []
