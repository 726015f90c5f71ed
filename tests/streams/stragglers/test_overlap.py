"""Waiting that hides in compute: found in the late rank's peers, never held against who waited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.labs.attribution import CAUSES, LAYOUTS, blamed, judged
from support.straggler_simulator import MS, Fault, batches, overlapped

from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import SUSPECT
from drumline.streams.lateness.collective_join import LATENESS_ROW
from drumline.streams.stragglers.analysis.attribution import Meeting, WindowTable, blame
from drumline.streams.stragglers.analysis.baseline import STEP
from drumline.streams.stragglers.analysis.overlap import hidden
from drumline.streams.stragglers.step_rows import BUDGET

STEPS, LATE = 5, 2
EVERYBODY = [0, 1, 2, 3]


def meeting(name: str = "dp", lag: float = 9.0, wait: float = 60.0) -> Meeting:
    """Rank 2 was behind by `lag` at most, the others waited `wait` in all."""
    lags, waits = np.zeros((4, STEPS)), np.full((4, STEPS), wait)
    lags[LATE], waits[LATE] = lag, 0.0
    worst = np.zeros((4, STEPS), LATENESS_ROW)
    return Meeting(name, 4, np.arange(4), waits, lags, worst, lags)


#: One late rank: its peers' kernels shared the GPU with communication for 30 more, and took 8 longer.
LONGER, OVERLAPPED = [58.0, 58.0, 50.0, 58.0], [40.0, 40.0, 10.0, 40.0]
#: The job's step when nobody was late.
USUAL = {"compute_ns": 51.0, "compute_overlapped_ns": 12.0, "kernels": 10.0, "blocks": 99.0, STEP: 94.0}


def shares(
    compute: list[float] = LONGER,
    overlap: list[float] = OVERLAPPED,
    one: Meeting | None = None,
    usual: dict[str, float] | None = None,
    **more: list[float],
) -> list[float]:
    """Of steps that take 100."""
    rows = {"compute_ns": compute, "compute_overlapped_ns": overlap, "kernels": [10.0] * 4, "blocks": [99.0] * 4}
    budget = {name: np.zeros((4, STEPS)) for name in BUDGET} | {"gpu_duration_ns": np.full((4, STEPS), 100.0)}
    for name, values in (rows | more).items():
        budget[name][:] = np.array(values)[:, None]
    one = one or meeting()
    window = WindowTable(np.arange(4), np.arange(STEPS), budget, [one])
    return [
        round(v, 3) for v in blame(window, 0.8, lambda met: hidden(window, met, 0.8, 1.01, usual or {})).share.tolist()
    ]


NOBODY = [0.0] * 4


def only(share: float) -> list[float]:
    return [0.0, 0.0, share, 0.0]


def test_without_a_past_a_late_rank_shows_in_its_peers_compute():
    assert shares() == only(0.08)


def test_with_a_past_it_costs_what_its_peers_took_longer_than_then():
    assert shares(usual=USUAL | {STEP: 90.0}) == only(0.07)


def test_it_costs_no_more_than_the_steps_grew():
    assert shares(usual=USUAL) == only(0.06)
    assert shares(usual=USUAL | {STEP: 100.0}) == NOBODY


def test_nor_more_than_it_ever_was_behind():
    """All GPUs slower together, and overlaps that happen to differ, are nobody's."""
    assert shares(usual=USUAL, one=meeting(lag=1.0)) == only(0.01)
    assert shares(one=meeting(lag=0.0)) == NOBODY
    assert shares(one=meeting(lag=-3.0), usual=USUAL) == NOBODY


@pytest.mark.parametrize("usual", [{}, USUAL])
def test_where_communicators_are_guessed_ranks_are_measured_by_each_other(usual):
    """Nobody knows who was behind there, so that slower GPUs could not be told from waiting by the past."""
    guessed = meeting("~7 AllReduce", lag=0.0)
    assert shares(one=guessed, usual=usual) == only(0.08)
    assert shares([58.0] * 4, one=guessed, usual=usual) == NOBODY


def test_a_faster_gpu_is_not_late():
    assert shares(overlap=[40.0] * 4) == NOBODY
    assert shares(overlap=[12.0] * 4, usual=USUAL) == NOBODY


@pytest.mark.parametrize("usual", [{}, USUAL | {"blocks": 110.0}])
def test_less_work_is_not_late(usual):
    assert shares(blocks=[99.0, 99.0, 80.0, 99.0], usual=usual) == NOBODY


def test_nobody_is_late_whom_nobody_waited_for():
    assert shares(one=meeting(wait=0.0)) == NOBODY


@pytest.mark.parametrize("usual", [{}, USUAL])
def test_who_took_longer_because_it_waited_is_not_late(usual):
    """Rank 2 waited elsewhere: it has 7 less exposed communication here, but its own kernels took 8 longer for it."""
    exposed = [17.0, 17.0, 10.0, 17.0]
    longer, overlap = [50.0, 50.0, 58.0, 50.0], [10.0, 10.0, 40.0, 10.0]
    assert shares(longer, overlap, comm_exposed_ns=exposed, usual=usual) == NOBODY
    assert shares(longer, [10.0] * 4, comm_exposed_ns=exposed, usual=usual) == only(0.07)


def test_who_waited_with_less_work_than_usual_is_not_late():
    """As before, but nobody knows how long rank 2 would have taken for its own work: it may all be waiting."""
    exposed, blocks, compute = [17.0, 17.0, 10.0, 17.0], [99.0, 99.0, 80.0, 99.0], [50.0, 50.0, 48.0, 50.0]
    waited = shares(compute, [10.0, 10.0, 40.0, 10.0], comm_exposed_ns=exposed, blocks=blocks, usual=USUAL)
    worked = shares(compute, [10.0] * 4, comm_exposed_ns=exposed, blocks=blocks, usual=USUAL)
    assert (waited, worked) == (NOBODY, only(0.07))


def test_ranks_of_a_pipeline_are_left_to_the_other_measure():
    assert shares(one=replace(meeting(), roles=np.array([0, 0, 2, 2]))) == NOBODY


#: Ranks late from here on, after as many healthy windows of 12 steps as a past needs, until the end.
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
def test_a_planted_rank_whose_lateness_hides_behind_compute_is_found_and_nobody_else(shape, rank, kind, cost, seed):
    found = blamed(judged(batches(job(shape, late(rank, kind, cost), seed=seed))))
    assert found == [*HEALTHY, *[{rank: CAUSES[kind]}] * 2]


@given(shapes, st.permutations(range(4)), st.floats(0.12, 0.2), st.floats(0.6, 1.0))
@settings(max_examples=5, deadline=None)
def test_of_two_planted_ranks_no_other_is_named(shape, order, cost, ratio):
    found = blamed(judged(batches(job(shape, late(order[0], "idle", cost), late(order[1], "copy", cost * ratio)))))
    assert found[:3] == HEALTHY
    for window in found[3:]:
        assert {order[0]} <= set(window) <= set(order[:2])


@given(shapes, st.randoms(use_true_random=False), st.integers(2, 1000), st.integers(0, 3))
@settings(max_examples=3, deadline=None)
def test_renaming_ranks_and_scaling_time_change_nothing_that_hides(shape, random, scale, rank):
    recording = job(shape, late(rank, "idle", 0.15))
    order = list(range(4))
    random.shuffle(order)
    plain = judged(batches(recording))
    other = judged(batches(recording, names=dict(enumerate(order)), scale=scale))
    assert plain[LATE_FROM][rank][0] > SUSPECT
    for first, rows in plain.items():
        for who, (severity, cause, share) in rows.items():
            same = other[first][order[who] if who >= 0 else who]
            assert same[:2] == (severity, cause)
            assert np.isclose(same[2], share, rtol=0, atol=1e-6)


LOSSES = ("never heard", "silent while late", "its collectives while late", "every third batch")


@given(shapes, st.integers(0, 3), st.integers(0, 3), st.sampled_from(LOSSES), kinds, st.floats(0.08, 0.6))
@example("mesh2x2", 0, 0, "every third batch", "compute", 0.5)
@settings(max_examples=10, deadline=None)
def test_whoever_is_not_heard_nobody_else_is_named_for_it(shape, rank, unheard, loss, kind, cost):
    def kept(number, batch):
        behind = batch.columns["step"][0] >= LATE_FROM
        lost = {"never heard": True, "silent while late": behind, "every third batch": number % 3 == 0}
        return batch.envelope["rank"] != unheard or not lost.get(loss, behind and batch.topic == Topic.COLLECTIVE)

    stream = batches(job(shape, late(rank, kind, cost)))
    found = judged(item for number, item in enumerate(stream) if kept(number, item[1]))
    assert found
    assert [named for named in blamed(found) if set(named) - {rank}] == []
