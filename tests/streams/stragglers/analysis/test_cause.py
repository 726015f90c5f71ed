"""The cause from a rank's budget against the ranks it met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drumline.streams.core.medians import peers_median
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.stragglers.analysis.cause import GroupBudget, find_cause
from drumline.streams.stragglers.analysis.window_data import WORST_ROW, CommunicatorWindow, WindowData
from drumline.streams.stragglers.step_rows import BUDGET

HOST_PARTS = ("load_ns", "gc_ns", "checkpoint_ns", "sync_ns")


def table(**more: float) -> tuple[WindowData, CommunicatorWindow]:
    """Four ranks over two steps; rank 1 has `more` of some components in each step."""
    plain = {"compute_ns": 50.0, "idle_ns": 5.0, "copy_ns": 1.0, "kernels": 100.0, "blocks": 1000.0}
    plain |= dict.fromkeys((*HOST_PARTS, "input_ns"), -1.0) | {"gpu_duration_ns": 100.0}
    budget = {name: np.full((4, 2), plain.get(name, 0.0)) for name in BUDGET}
    for name, value in more.items():
        budget[name][1] += value
    zeros = np.zeros((4, 2))
    group = CommunicatorWindow("c", 4, np.arange(4), zeros, zeros, np.zeros(4, WORST_ROW))
    return WindowData(np.arange(4), np.arange(2), budget, [group]), group


@pytest.mark.parametrize(
    ("more", "cause", "detail", "confidence"),
    [
        ({"idle_ns": 30}, "host_stall", "", "high"),
        ({"copy_ns": 30}, "slow_copy", "", "high"),
        ({"compute_ns": 30}, "slow_compute", "same_work", "high"),
        ({"compute_ns": 30, "kernels": 5}, "slow_compute", "other_work", "high"),
        ({"compute_ns": 30, "kernels": -5}, "slow_compute", "other_work", "high"),
        ({"idle_ns": 30, "copy_ns": 14}, "host_stall", "", "medium"),
        ({"idle_ns": 30, "copy_ns": 29}, "unknown", "mixed", "low"),
        ({"idle_ns": 30, "compute_ns": -20}, "host_stall", "", "high"),
        ({"compute_ns": 12, "idle_ns": 13, "blocks": 250, "kernels": 20}, "slow_compute", "more_work", "high"),
        ({"compute_ns": 3, "idle_ns": 30, "blocks": 250}, "host_stall", "", "high"),
        ({"copy_ns": 30, "blocks": 250}, "slow_copy", "", "high"),
        ({"idle_ns": 30, "input_ns": 29}, "host_stall", "data_loader", "high"),
        ({"copy_ns": 30, "copy_pageable_ns": 28}, "slow_copy", "pageable", "high"),
        ({"copy_ns": 30, "copy_pageable_ns": 3}, "slow_copy", "", "high"),
        ({"compute_ns": -5, "idle_ns": -5}, "unknown", "", "low"),
    ],
)
def test_cause(more, cause, detail, confidence):
    result = find_cause(GroupBudget(*table(**more), StragglerConfig()), 1)
    assert (result.cause, result.detail, result.confidence) == (cause, detail, confidence)


def test_idle_in_the_input_range_is_the_data_loaders_where_it_is_known():
    window, group = table(idle_ns=30)
    window.budget["input_ns"][:] = 0.0
    window.budget["input_ns"][1] = 25.0
    assert find_cause(GroupBudget(window, group, StragglerConfig()), 1).detail == "data_loader"


#: Times of rank 1 in each step beside 2 ns of all ranks, of 30 ns that it is idle for longer -> detail.
HOST_TIMES = {
    "loader": ({"load_ns": 25}, "data_loader"),
    "collector": ({"gc_ns": 20}, "garbage_collection"),
    "collector within the loader": ({"gc_ns": 20, "load_ns": 25}, "garbage_collection"),
    "checkpoint": ({"checkpoint_ns": 40}, "checkpoint"),
    "checkpoint that waits for the GPU": ({"checkpoint_ns": 29, "sync_ns": 28}, "checkpoint"),
    "waiting for the GPU": ({"sync_ns": 30}, "synchronisation"),
    "waiting for the GPU, and launching": ({"sync_ns": 6}, "synchronisation"),
    "too little of each": ({"load_ns": 15, "gc_ns": 10, "sync_ns": 4}, ""),
    "nothing more than its peers": ({}, ""),
    "its peers wait for it": ({"sync_ns": -2}, ""),
}


@pytest.mark.parametrize(("times", "detail"), HOST_TIMES.values(), ids=HOST_TIMES)
def test_the_hosts_time_in_a_part_is_the_detail_where_it_explains_the_idle_time(times, detail):
    window, group = table(idle_ns=30)
    for name in HOST_PARTS:
        window.budget[name][:] = 2.0
        window.budget[name][1] += times.get(name, 0)
    result = find_cause(GroupBudget(window, group, StragglerConfig()), 1)
    assert (result.cause, result.detail) == ("host_stall", detail)
    assert {name: result.excess_ns[name] for name in times} == {name: 2 * ns for name, ns in times.items()}


@pytest.mark.parametrize(("sync_ns", "detail"), [(1.5, ""), (2.5, "synchronisation")])
def test_waits_that_would_not_be_suspect_by_themselves_are_no_detail(sync_ns, detail):
    window, group = table(idle_ns=6)
    window.budget["sync_ns"][:] = 0.0
    window.budget["sync_ns"][1] = sync_ns  # of 100 ns
    assert find_cause(GroupBudget(window, group, StragglerConfig()), 1).detail == detail


def test_times_of_the_host_that_only_one_rank_knows_explain_its_idle_time():
    window, group = table(idle_ns=30)
    window.budget["load_ns"][1] = 25.0
    assert find_cause(GroupBudget(window, group, StragglerConfig()), 1).detail == "data_loader"


@pytest.mark.parametrize(("light", "load_ns", "expected"), [
    (True, 40.0, ("host_stall", "data_loader")), (True, 20.0, ("unknown", "mixed")),
    (False, 40.0, ("unknown", "mixed")),
])  # fmt: skip
def test_where_compute_is_not_measured_the_hosts_time_explains_a_loss_by_itself(light, load_ns, expected):
    window, group = table(idle_ns=30, compute_ns=28)
    window.budget["load_ns"][:] = 0.0
    window.budget["load_ns"][1] = load_ns
    result = find_cause(GroupBudget(replace(window, light=light), group, StragglerConfig()), 1, lost_ns=2 * 58.0)
    assert (result.cause, result.detail) == expected


#: compute of all ranks, of rank 1 more, idle of rank 1 more, loss over two steps -> cause and what compute explains.
BASELINES = {
    "waiting peers compute slower": (20, 0, 0, 40, "slow_compute", 40),
    "no further than it lost": (20, 0, 0, 30, "slow_compute", 30),
    "all GPUs slower, it idles": (9, 0, 5, 10, "host_stall", 0),
    "all GPUs slower, it idles and is slower itself": (9, 2, 9, 22, "host_stall", 4),
    "what it has more than its peers stands": (0, 20, 0, 10, "slow_compute", 40),
    "faster than then": (-20, 10, 0, 20, "slow_compute", 20),
    "nothing known of a loss": (9, 0, 5, 0, "host_stall", 0),
}


@pytest.mark.parametrize(("slower", "more", "idle", "lost", "cause", "explained"), BASELINES.values(), ids=BASELINES)
def test_the_baseline_explains_no_more_compute_than_was_lost(slower, more, idle, lost, cause, explained):
    window, group = table(compute_ns=more, idle_ns=idle)
    window.budget["compute_ns"] += slower
    result = find_cause(GroupBudget(window, group, StragglerConfig()), 1, baseline_compute_ns=50.0, lost_ns=lost)
    assert (result.cause, result.excess_ns["compute_ns"]) == (cause, explained)
    assert result.slowdown == pytest.approx(1 + explained / (2 * (50 + slower + more) - explained), abs=1e-4)


def test_excess_is_summed_over_the_window():
    assert find_cause(GroupBudget(*table(copy_ns=30), StragglerConfig()), 1).excess_ns == {
        "idle_ns": 0,
        "copy_ns": 60,
        "compute_ns": 0,
    }


def test_the_median_of_the_others_leaves_oneself_and_the_missing_out():
    values = np.array([[1.0, 5.0], [3.0, np.nan], [9.0, 7.0], [4.0, np.nan]])
    expected = [[4.0, 7.0], [4.0, np.nan], [3.0, 5.0], [3.0, np.nan]]
    np.testing.assert_array_equal(peers_median(values), expected)


def test_the_median_of_the_others_is_numpys():
    random = np.random.default_rng(3)
    for m in (2, 3, 4, 7, 8):
        values = random.normal(size=(m, 5))
        expected = [np.median(np.delete(values, row, 0), axis=0) for row in range(m)]
        np.testing.assert_allclose(peers_median(values), expected)
