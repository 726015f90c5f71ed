"""A job that keeps more state than its share pays for it itself; a full worker takes no new jobs, and says so."""

import time
from contextlib import suppress

import numpy as np
from support.labs.windows import Lab, S, kernels
from support.straggler_simulator import batches, ddp, simulate

from drumline.schemas.batch import Batch
from drumline.streams.core.budget import OverBudget, StateBudget, StateLimits
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.stage import ProcessWindows


def lab_of(**limits):
    lab = Lab()
    lab.budget = StateBudget(StateLimits(**limits))
    lab.stage = ProcessWindows(lab.store, lab.config, lab.reducer, lab.budget)
    return lab


def feed(lab, process, job):
    batch = kernels([(1, 10, "k")], process=process)
    batch.envelope["job"] = job
    return lab.feed(batch)


def test_a_job_above_its_share_goes_into_quarantine_and_its_neighbours_do_not():
    lab = lab_of(worker_bytes=100_000, job_share=0.5)
    feed(lab, "good", "good")
    for number in range(100):
        with suppress(OverBudget):
            feed(lab, f"evil{number}", "evil")
    feed(lab, "also-good", "also-good")
    assert {unit[0] for unit in lab.stage.processes} >= {"good", "also-good", "evil0"}
    assert {incident.job for incident in lab.stage.incidents} == {"evil"}
    assert "DRUMLINE_STREAM__STATE_MB" in str(lab.stage.incidents[0].error)
    lab.silence()
    assert {process for process, _ in lab.table()} >= {"good", "also-good"}


def test_a_full_worker_counts_the_rows_of_new_jobs_and_takes_them_when_others_were_forgotten():
    lab = lab_of(worker_bytes=60_000)
    for number in range(100):
        feed(lab, f"p{number}", f"j{number}")
    assert 0 < lab.stage.denied_rows < 100
    assert lab.budget.full
    assert not lab.stage.quarantine
    lab.silence()
    kept = len(lab.stage.processes)
    assert {process for process, _ in lab.table()} == {f"p{number}" for number in range(kept)}, (
        "those taken in lost nothing"
    )
    lab.tick(61)
    lab.tick()
    assert not lab.budget.full
    feed(lab, "new", "new")
    assert ("new", "r") in lab.stage.processes


def test_what_is_forgotten_and_what_is_released_costs_nothing():
    lab = lab_of()
    for number in range(5):
        feed(lab, f"p{number}", f"j{number % 2}")
    before = (lab.budget.total, dict(lab.budget.jobs))
    lab.stage.release()
    assert (lab.budget.total, lab.budget.jobs) == (0, {})
    lab.stage = ProcessWindows(lab.store, lab.config, lab.reducer, lab.budget)
    assert (lab.budget.total, lab.budget.jobs) == before, "restored state costs the same"
    lab.silence()
    lab.tick(lab.config.forget_ns / S + 1)
    assert (lab.budget.total, lab.budget.jobs, lab.store) == (0, {}, {})


def test_stragglers_cost_the_same_after_a_restart():
    config, budget = StragglerConfig(window_steps=5), StateBudget()
    stages = CommunicatorStage({}, config, budget), JobStage({}, config, budget)
    for offset, (now_ns, batch) in enumerate(batches(simulate(ddp(2), 30, ()))):
        stages[batch.topic == "gpu.step.v1"].on_batch(batch, offset, now_ns)
    before = (budget.total, dict(budget.jobs))
    for stage in stages:
        stage.release()
        type(stage)(dict(stage.store), config, budget)
    assert (budget.total, budget.jobs) == before
    assert set(before[1]) == {"job"}


def step(n, width):
    envelope = {"job": "evil", "run": "evil", "rank": 0, "world_size": 2, "host": "h", "gpu_uuid": "g"}
    columns = {name: np.full(n, 1_000_000) for name in _COLUMNS}
    columns |= {"step": np.arange(n) * width, "start_ns": 10**18 + np.arange(n), "skipped": np.zeros(n, "u1")}
    return Batch("gpu.step.v1", {**envelope, "complete_step": n * width, "rows": n}, columns)


_COLUMNS = next(b for _, b in batches(simulate(ddp(2), 3, ())) if b.topic == "gpu.step.v1").columns


def test_a_record_of_90000_windows_costs_no_more_than_the_steps_that_are_kept():
    """It blocked the worker's main loop for minutes, after every restart again."""
    stage, started = JobStage({}, StragglerConfig()), time.monotonic()
    stage.on_batch(step(90_000, 20), 0, 10**18)
    assert time.monotonic() - started < 10
    assert len(stage.store) <= 4096 // 20 + 3
    assert stage.too_old == 90_000 - 4096 // 20 - 1


def test_a_record_of_300000_chunks_costs_no_more_than_the_steps_that_are_kept():
    n = 300_000
    envelope = {"job": "evil", "run": "evil", "rank": 0, "world_size": 2, "host": "h", "gpu_uuid": "g", "rows": n}
    envelope |= {"communicator": "c", "complete_step": n * 4, "operations": ["AllReduce"]}
    columns = {name: np.zeros(n, np.int64) for name in ("ordinal", "operation", "bytes", "covered_ns")}
    columns |= {"step": np.arange(n) * 4, "start_ns": 10**18 + np.arange(n), "duration_ns": np.full(n, 1000)}
    stage, started = CommunicatorStage({}, StragglerConfig()), time.monotonic()
    stage.on_batch(Batch("gpu.collective.v1", envelope, columns), 0, 10**18)
    assert time.monotonic() - started < 10
    assert len(stage.store) <= 4096 // 4 + 2
    assert stage.too_old == n - 1024
