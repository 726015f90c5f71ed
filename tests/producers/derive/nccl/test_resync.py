"""Lost records cost their own steps and never make a wrong pair, compared with the pairs of the whole recording."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from support import trace_mutations as mutations
from support.recordings import jobs_to_damage, trace

from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.kernels import NcclKernels
from drumline.producers.derive.nccl.resync import whole_steps
from drumline.producers.derive.rows import derive
from drumline.producers.derive.steps.steps import Steps
from drumline.producers.derive.steps.template import find_template, is_subsequence, step_ordinals
from drumline.producers.replay.recording import measured_from

JOBS = jobs_to_damage()
ROW = ("start_ns", "communicator", "operation", "bytes", "step", "ordinal")
BUDGET = ("step", "gpu_start_ns", "gpu_duration_ns", "collectives")


def derived_rows(activity, since):
    """(rows of collectives in steps, {step: budget interval} of steps that count) as sets."""
    result = derive(activity, since_ns=since)
    rows = result.collectives.take(result.collectives["step"] >= 0)
    steps = result.steps.take(result.steps["skipped"] == 0)
    return tuple(set(zip(*(t[n].tolist() for n in names), strict=True)) for t, names in ((rows, ROW), (steps, BUDGET)))


@cache
def truth(folder):
    recorded = trace(folder)
    return [derived_rows(a, since) for a, since in zip(recorded.activities, measured_from(recorded), strict=True)]


def share_kept(folder, damaged):
    """(of rows, of steps that count) over all ranks; a wrong one fails."""
    right, total = np.zeros(2), np.zeros(2)
    since = measured_from(trace(folder))
    for rank, (whole, activity) in enumerate(zip(truth(folder), damaged.activities, strict=True)):
        after = derived_rows(activity, since[rank])
        first = min((step for step, *_ in after[1]), default=0)
        for kind, (before, result) in enumerate(zip(whole, after, strict=True)):
            wrong = {row for row in result - before if kind == 0 or row[0] > first}  # the first may lack its begin
            assert not wrong, (rank, sorted(wrong)[:3])
            right[kind] += len(result & before)
            total[kind] += len(before)
    return right / total


@pytest.mark.parametrize("folder", JOBS)
@pytest.mark.parametrize(
    ("kinds", "share", "rows", "steps"),
    [
        (("kernels",), 0.001, 0.90, 0.85),
        (("markers",), 0.001, 0.90, 0.85),
        (("payloads",), 0.01, 0.99, 0.99),
        (("kernels", "markers", "payloads"), 0.001, 0.90, 0.80),
        (("kernels", "markers", "payloads"), 0.01, 0.0, 0.0),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value),
)
def test_lost_records_make_no_wrong_pair_and_leave_the_other_steps(folder, kinds, share, rows, steps):
    kept = share_kept(folder, mutations.lost(trace(folder), share, 1, kinds))
    assert (kept >= (rows, steps)).all(), kept


def test_a_segment_without_kernels_costs_its_own_steps():
    recorded = trace(DEMO_RECORDING)
    whole = recorded.activities[1]
    start = np.sort(whole.kernels["start_ns"])
    lost = (whole.kernels["start_ns"] >= start[len(start) // 3]) & (whole.kernels["start_ns"] < start[len(start) // 2])
    damaged = replace(whole, kernels=whole.kernels.take(~lost))
    kept = share_kept(
        DEMO_RECORDING, replace(recorded, activities=(recorded.activities[0], damaged, *recorded.activities[2:]))
    )
    assert kept[1] > 0.9


def test_recording_may_begin_in_the_middle():
    recorded = trace(DEMO_RECORDING)
    at = np.sort(recorded.activities[0].kernels["start_ns"])[recorded.activities[0].kernels.rows // 2]
    assert share_kept(DEMO_RECORDING, mutations.since(recorded, at))[1] > 0.4


def test_as_many_kernels_lost_as_calls_are_not_paired_by_their_count():
    activity, since = trace(DEMO_RECORDING).activities[0], measured_from(trace(DEMO_RECORDING))[0]
    kernels, payloads, markers = activity.kernels, activity.payloads, activity.markers
    reduces = np.flatnonzero((nccl.kernel_operations(kernels.dictionaries["names"]) == 1)[kernels["name"]])
    lost_kernel = reduces[np.argsort(kernels["correlation"][reduces])[len(reduces) // 4]]
    lost_call = np.sort(payloads["id"])[3 * payloads.rows // 4]
    damaged = replace(
        activity,
        kernels=kernels.take(np.arange(kernels.rows) != lost_kernel),
        markers=markers.take(markers["id"] != lost_call),
    )
    before, result = truth(DEMO_RECORDING)[0], derived_rows(damaged, since)
    assert result[0] <= before[0]
    assert len(result[0]) > 0.95 * len(before[0])


def job(steps, distances=(10, 20, 30, 40), lead_ns=0, every_ns=1_000_000):
    """(kernels, calls, steps) of a job of equal steps: distances of correlation ids, the last one to the next step.
    The GPU starts what the host called `lead_ns` ago."""
    from drumline.producers.derive.nccl.calls import NcclCalls

    size = len(distances)
    correlation = np.cumsum(np.tile(distances, steps)) - distances[-1]
    called = correlation * (every_ns // sum(distances))
    count = len(called)
    calls = NcclCalls(
        called, np.ones(count, "u1"), np.full(count, 7, "u8"), np.tile(np.arange(size), steps).astype("u8"),
        np.ones(count, bool), called, np.full(count, -1, "i4"),
    )  # fmt: skip
    begins = called[::size] - 1
    step_ranges = Steps(np.arange(steps), begins, np.append(begins[1:], called[-1] + every_ns))
    return NcclKernels(np.ones(count, "u1"), correlation, called + 10_000 + lead_ns), calls, step_ranges


def placed(kernels, calls, steps):
    template = find_template(calls, steps.index_at(calls.start_ns), steps)
    return whole_steps(kernels, template, 0)


def test_a_host_that_is_steps_ahead_all_the_time_is_believed_by_its_counts_only():
    kernels, calls, steps = job(30, lead_ns=2_500_000)
    assert placed(kernels, calls, steps).tolist() == list(range(120))
    lost = np.setdiff1d(np.arange(120), [50])  # both ends are whole on one side only: the steps are ambiguous
    result = placed(kernels.take(lost), calls, steps)
    assert set(result[result >= 0].tolist()) <= set(range(120))
    assert all(place in (-1, index) for index, place in zip(lost.tolist(), result.tolist(), strict=True))


def test_a_host_in_step_identifies_its_steps():
    kernels, calls, steps = job(30)
    lost = np.setdiff1d(np.arange(120), [0, 50, 119])
    result = placed(kernels.take(lost), calls, steps)
    assert all(place in (-1, index) for index, place in zip(lost.tolist(), result.tolist(), strict=True))
    complete = np.bincount(result[result >= 0] // 4, minlength=30) == 4
    assert np.flatnonzero(~complete).tolist() == [0, 12, 29]


def test_distances_that_repeat_within_a_step_match_nothing():
    kernels, calls, steps = job(30, distances=(10, 10, 10, 10))
    assert (placed(kernels.take(np.arange(1, 120)), calls, steps) == -1).all()


def test_steps_are_counted_by_ones_whatever_they_are_called():
    assert step_ordinals(np.array([0, 10, 20, 40, 45])).tolist() == [0, 1, 2, 4, -1]


def test_what_was_left_out_of_a_sequence():
    whole = np.array([1, 2, 3, 2])
    assert is_subsequence(np.array([1, 3, 2]), whole)
    assert is_subsequence(np.array([-1, 3]), whole)
    assert not is_subsequence(np.array([3, 1]), whole)
