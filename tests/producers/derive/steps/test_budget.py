"""Steps and where the GPU's time in them went: it always adds up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.activity_builder import ALL_REDUCE, GEMM, Recorder, column, lockstep

from drumline.producers.activity.activity import Activity
from drumline.producers.activity.table import Table
from drumline.producers.derive.rows import derive
from drumline.producers.derive.steps.budget import gpu_busy, gpu_intervals
from drumline.producers.derive.steps.steps import host_steps

US = 1_000
T0 = 1_000_000


def one_step(recorder, tmp_path):
    derived = derive(recorder.activity(tmp_path)).steps
    assert derived.rows == 1
    return {name: int(derived[name][0]) for name in derived.columns}


def test_known_budget(tmp_path):
    recorder = Recorder()
    recorder.range("step 7", T0, T0 + 100 * US)
    recorder.kernel(GEMM, T0 + 10 * US, T0 + 30 * US, grid=4)
    recorder.kernel(GEMM, T0 + 20 * US, T0 + 40 * US, grid=6)  # 10 us of the first one again
    recorder.copy(1, T0 + 35 * US, T0 + 50 * US)  # 10 us not covered
    recorder.copy(8, T0 + 55 * US, T0 + 60 * US)  # stays on the device: compute
    recorder.memset(T0 + 60 * US, T0 + 62 * US)
    recorder.call("ncclAllReduce", T0 + 1 * US)
    recorder.kernel(ALL_REDUCE, T0 + 38 * US, T0 + 80 * US)  # under: 2 us compute, 10 copy, 7 on device
    assert one_step(recorder, tmp_path) == {
        "step": 7,
        "start_ns": T0,
        "duration_ns": 100 * US,
        "gpu_start_ns": T0,
        "gpu_duration_ns": 80 * US,
        "compute_ns": 37 * US,
        "compute_overlapped_ns": 9 * US,
        "copy_ns": 10 * US,
        "copy_total_ns": 15 * US,
        "copy_pageable_ns": 15 * US,
        "comm_ns": 42 * US,
        "comm_exposed_ns": 23 * US,
        "idle_ns": 10 * US,
        "launch_late_ns": -1,
        "sync_ns": -1,
        "input_ns": -1,
        "load_ns": -1,
        "gc_ns": -1,
        "checkpoint_ns": -1,
        "kernels": 2,
        "blocks": 10,
        "collectives": 1,
        "skipped": 0,
    }


def test_the_end_of_a_marked_step_carries_the_hosts_time(tmp_path):
    recorder = Recorder()
    recorder.range("step 0", T0, T0 + 100 * US, domain="drumline", end_name="2,1,0,ff")
    recorder.kernel(GEMM, T0 + 20 * US, T0 + 60 * US)
    recorder.call("ncclAllReduce", T0 + 40 * US)
    recorder.kernel(ALL_REDUCE, T0 + 70 * US, T0 + 80 * US)
    derived = one_step(recorder, tmp_path)
    host = [derived[name] // US for name in ("load_ns", "gc_ns", "checkpoint_ns", "sync_ns")]
    assert host == [20, 10, 0, 2_550]


def test_idle_in_a_range_that_gets_input_is_input_time(tmp_path):
    recorder = Recorder()
    recorder.range("step 0", T0, T0 + 100 * US)
    recorder.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", T0 + 5 * US, T0 + 30 * US)
    recorder.kernel(GEMM, T0 + 20 * US, T0 + 60 * US)
    recorder.call("ncclAllReduce", T0 + 40 * US)
    recorder.kernel(ALL_REDUCE, T0 + 70 * US, T0 + 80 * US)
    derived = one_step(recorder, tmp_path)
    assert (derived["idle_ns"], derived["input_ns"]) == (30 * US, 15 * US)


def test_work_that_the_host_ran_ahead_of_counts_in_the_step_that_called_it(tmp_path):
    recorder = Recorder()
    for number in range(3):  # the host is done with all three before the GPU has started
        recorder.range(f"step {number}", T0 + number * 10, T0 + number * 10 + 9)
        recorder.call("ncclAllReduce", T0 + number * 10 + 1)
    for number in range(3):
        recorder.kernel(GEMM, T0 + (number * 100 + 10) * US, T0 + (number * 100 + 60 + number) * US)
        recorder.kernel(ALL_REDUCE, T0 + (number * 100 + 70) * US, T0 + (number * 100 + 90) * US)
    derived = derive(recorder.activity(tmp_path)).steps
    assert column(derived, "compute_ns") == [50 * US, 51 * US, 52 * US]
    assert column(derived, "gpu_duration_ns") == [90 * US, 100 * US, 100 * US]


def test_a_step_without_collectives_keeps_its_host_times(tmp_path):
    recorder = Recorder()
    for number in range(3):
        start = T0 + number * 100 * US
        recorder.range(f"step {number}", start, start + 80 * US)
        if number != 1:
            recorder.call("ncclAllReduce", start + US)
            recorder.kernel(ALL_REDUCE, start + 50 * US, start + 60 * US)
    derived = derive(recorder.activity(tmp_path)).steps
    assert column(derived, "gpu_start_ns") == [T0, T0 + 100 * US, T0 + 200 * US]
    assert column(derived, "gpu_duration_ns") == [60 * US, 80 * US, 60 * US]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_budget_adds_up_whatever_overlaps(data):
    times = st.integers(T0, T0 + 500)
    spans = st.lists(st.tuples(times, st.integers(0, 120), st.integers(0, 3)), max_size=25)
    kernels, copies = data.draw(spans), data.draw(spans)
    edges = sorted(data.draw(st.lists(times, min_size=2, max_size=6, unique=True)))
    gpu = gpu_busy(
        Table({
            "start_ns": np.array([k[0] for k in kernels], "i8"),
            "duration_ns": np.array([k[1] for k in kernels], "u8"),
        }),
        np.array([k[2] == 0 for k in kernels], bool),
        Table({
            "start_ns": np.array([c[0] for c in copies], "i8"),
            "duration_ns": np.array([c[1] for c in copies], "u8"),
            "kind": np.array([(1, 2, 8, 64)[c[2]] for c in copies], "u1"),
        }),
    )  # fmt: skip
    start, end = np.array(edges[:-1]), np.array(edges[1:])
    grid = np.arange(T0, T0 + 700)

    def painted(rows):
        on = np.zeros(len(grid), bool)
        for at, length, _ in rows:
            on |= (grid >= at) & (grid < at + length)
        return on

    compute = painted([k for k in kernels if k[2]]) | painted([c for c in copies if c[2] >= 2])
    copy, comm = painted([c for c in copies if c[2] < 2]), painted([k for k in kernels if not k[2]])
    for i, (a, b) in enumerate(zip(start, end, strict=True)):
        inside = (grid >= a) & (grid < b)
        assert gpu.compute.covered(start, end)[i] == (compute & inside).sum()
        assert gpu.compute_or_copy.covered(start, end)[i] == ((compute | copy) & inside).sum()
        assert gpu.any.covered(start, end)[i] == ((compute | copy | comm) & inside).sum()
        assert gpu.compute_or_comm.covered(start, end)[i] == ((compute | comm) & inside).sum()


def markers(tmp_path, *named):
    recorder = Recorder()
    for i, name in enumerate(named):
        recorder.range(name, T0 + i * 100, T0 + i * 100 + 90)
    recorder.kernel(GEMM, T0, T0 + 1)
    return recorder.activity(tmp_path)


def steps_of(activity: Activity, **more):
    from drumline.producers.derive.nvtx import ranges

    return host_steps(ranges(activity.markers)[0], **more)


def test_numbers_that_start_again_are_counted_on(tmp_path):
    derived = steps_of(markers(tmp_path, "step 0", "step 1", "step 0", "step 1", "step 5"))
    assert derived.number.tolist() == [0, 1, 2, 3, 7]


def test_a_numbering_that_ended_before_the_measurement_is_warm_up(tmp_path):
    activity = markers(tmp_path, "step 0", "step 1", "step 0", "step 1")
    assert steps_of(activity, since_ns=T0 + 195).number.tolist() == [0, 1]
    assert derive(activity, since_ns=T0 + 195).ranges["step"].tolist() == [-1, -1, 0, 1]


def test_another_pattern(tmp_path):
    activity = markers(tmp_path, "epoch", "iteration=3", "iteration=4", "step 1")
    assert steps_of(activity, pattern=r"^iteration=(\d+)$").number.tolist() == [3, 4]


def test_a_step_inside_a_step_is_none(tmp_path):
    recorder = Recorder()
    recorder.range("step 1", T0, T0 + 100)
    recorder.range("step 0", T0 + 10, T0 + 20)
    recorder.range("step 2", T0 + 200, None)  # the recording ends in it
    recorder.kernel(GEMM, T0, T0 + 1)
    assert steps_of(recorder.activity(tmp_path)).number.tolist() == [1]


def test_intervals_of_ranks_that_leave_together_are_equal(tmp_path):
    recorder = lockstep(ranks=1, steps=4)
    derived = derive(recorder.activity(tmp_path))
    ends = derived.collectives["start_ns"] + derived.collectives["duration_ns"]
    assert (derived.steps["gpu_start_ns"][1:] == ends[:-1]).all()


@pytest.mark.parametrize("last", [[0, 0], [50, 0], [0, 150], [5, 4]])
def test_intervals_never_run_backwards(last):
    from drumline.producers.derive.steps.steps import Steps

    steps = Steps(np.array([0, 1]), np.array([10, 100]), np.array([90, 190]))
    start, end = gpu_intervals(steps, np.array(last))
    assert (end >= start).all()
