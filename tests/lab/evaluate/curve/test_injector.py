"""Faults injected into drawn steps, read by the verdict code: large ones are named, none where nothing was injected."""

from itertools import pairwise

import numpy as np
import pytest
from support.pipeline_simulator import simulate_pipeline
from support.simulated_rows import healthy_rows, healthy_runs, rows_of

from drumline.lab.evaluate.curve.healthy_windows import EvaluatedWindows, HealthyCount
from drumline.lab.evaluate.curve.injection import Injection, delays
from drumline.lab.evaluate.curve.injector import DrawPlan, Injector
from drumline.lab.evaluate.curve.replayed_batches import batches, call_columns
from drumline.lab.evaluate.curve.replayed_job import replay
from drumline.lab.evaluate.curve.timings import runs_of_steps
from drumline.schemas.topics import Topic
from drumline.streams.core.thresholds import StragglerConfig


@pytest.fixture(scope="module")
def rows():
    return healthy_rows()


def injector(rows, **plan):
    return Injector(rows, healthy_runs(rows), StragglerConfig(), DrawPlan(replicates=1, **plan), 62e6, 0.0)


def test_a_fault_of_a_third_of_a_step_is_named_with_its_cost_and_stays(rows):
    for kind in ("host", "gpu"):
        [fault] = injector(rows, kinds=(kind,), sizes=(0.3,)).faults()
        assert fault.cost.cost == pytest.approx(0.3, abs=0.01)
        assert fault.recall.within_steps(60)
        assert fault.recall.stays
        assert all(stated == pytest.approx(true, abs=0.02) for true, stated in fault.pairs)


def test_a_fault_that_costs_nothing_has_no_recall(rows):
    [fault] = injector(rows, kinds=("host",), sizes=(0.0,)).faults()
    assert fault.cost.cost == 0.0
    assert (fault.recall.steps, fault.recall.wrong) == (None, 0)
    assert all(true == 0.0 for true, _ in fault.pairs)


def test_windows_without_a_fault_are_counted_and_evaluated(rows):
    count, coverage = HealthyCount(), EvaluatedWindows()
    injector(rows, windows=30).count_healthy(count, coverage, lambda _: None)
    assert (count.windows, count.named, coverage.share) == (30, 0, 1.0)


def test_published_rows_add_up_to_the_step_and_show_who_idles(rows):
    [steps] = healthy_runs(rows)
    added = delays([Injection("host", 0.5, 1, 20), Injection("gpu", 0.5, 0, 20)], len(steps), 2, 62e6, 1.0)
    job, calls = replay(steps, added), call_columns(steps)
    for scenario, (name, rank) in enumerate((("idle_ns", 1), ("compute_ns", 0))):
        published = [batch for _, batch in batches(job, scenario, added, calls, "cupti", ["c"])]
        more = {}
        for batch in (batch for batch in published if batch.topic == Topic.STEP):
            c = batch.columns
            parts = c["compute_ns"] + c["copy_ns"] + c["idle_ns"] + c["comm_exposed_ns"]
            assert np.abs(parts - c["gpu_duration_ns"]).max() < 2e4
            more.setdefault(int(batch.envelope["rank"]), []).append(c[name].mean())
        assert more[rank][-1] - more[rank][0] == pytest.approx(31e6, rel=0.05)
        assert more[1 - rank][-1] - more[1 - rank][0] == pytest.approx(0, abs=1e6)
        times = [batch.envelope["complete_step"] for batch in published]
        assert all(before <= after for before, after in pairwise(times))


def test_a_slow_link_of_a_pipeline_of_sends_costs_no_more_than_each_send_of_it():
    rows = rows_of(simulate_pipeline((1.0, 1.2), 1, 41))
    runs = runs_of_steps(rows, [(0, 40)])
    step_ns = float(np.median(rows.step_times().time_ns))
    plan = DrawPlan(replicates=1, kinds=("link",), sizes=(0.2,))
    [fault] = Injector(rows, runs, StragglerConfig(), plan, step_ns, None).faults()
    assert 0.02 < fault.cost.cost < 0.5
    assert fault.beside == "loss unknown"
