"""A job that keeps more state than its share pays for it itself; a full worker takes no new jobs, and says so."""

import time

import numpy as np
import pytest
from support.labs.windows import Lab, S, kernels
from support.straggler_simulator import batches, ddp, simulate
from support.tables import apply_batch

from drumline.infra.config.settings import Settings, StreamSettings
from drumline.schemas.batch import Batch
from drumline.streams.core.state_budget import StateBudget, StateLimits
from drumline.streams.core.thresholds import StragglerConfig
from drumline.streams.lateness.stage import CommunicatorStage
from drumline.streams.stragglers.stage import JobStage
from drumline.streams.windows.stage import ProcessWindows
from drumline.streams.worker.app import state_bytes


def lab_of(**limits):
    lab = Lab()
    lab.budget = StateBudget(StateLimits(**limits))
    lab.stage = ProcessWindows(lab.store, lab.config, lab.reducer, lab.budget)
    return lab


def feed(lab, process, job):
    batch = kernels([(1, 10, "k")], process=process)
    batch.envelope["job"] = job
    return lab.feed(batch)


def collective(job, rank, step, ranks, n=100):
    envelope = {"job": job, "run": job, "rank": rank, "world_size": ranks, "host": f"h{rank}", "gpu_uuid": "g"}
    envelope |= {"communicator": "c", "complete_step": step, "operations": ["AllReduce"], "rows": n}
    columns = {name: np.zeros(n, np.int64) for name in ("operation", "bytes", "covered_ns")}
    columns |= {"step": np.full(n, step), "ordinal": np.arange(n), "duration_ns": np.full(n, 1000)}
    return Batch("gpu.collective.v1", envelope, columns | {"start_ns": 10**18 + step * 10**9 + np.arange(n)})


def emitted(stage, job, steps, ranks):
    """Return the steps whose lateness the stage publishes of all ranks."""
    out = []
    for step in steps:
        for rank in range(ranks):
            for batch in apply_batch(stage, collective(job, rank, step, ranks), step * ranks + rank, 10**18):
                stage.mark_sent(batch)
                out += [
                    s for s in set(batch.columns["step"].tolist()) if batch.columns["step"].tolist().count(s) == ranks
                ]
    return out


def test_a_job_alone_may_use_everything_and_keeps_fewer_steps_at_the_limit():
    """It went into quarantine at half of it, and its state was deleted. These 4 ranks would keep 1.2 MB."""
    budget = StateBudget(StateLimits(worker_bytes=700_000))
    stage, peak = CommunicatorStage({}, StragglerConfig(), budget), 0
    for step in range(120):
        assert emitted(stage, "large", [step], 4) == [step]
        peak = max(peak, budget.total)
    assert 600_000 < peak < 750_000
    assert not stage.quarantine
    assert stage.denied_rows == stage.too_old == 0


def test_at_the_limit_the_largest_job_does_not_grow_and_small_ones_do_however_many_there_are():
    """Names of jobs are free: an equal share of 80,000 was 4 kB, and whoever had more lost its state."""
    budget = StateBudget(StateLimits(worker_bytes=320_000_000))
    stage = CommunicatorStage({}, StragglerConfig(), budget)
    assert emitted(stage, "innocent", range(4), 2) == [*range(4)]
    for number in range(80_000):
        budget.charge(f"name{number}", 3_000)
    budget.charge("large", 170_000_000)
    assert budget.full
    assert emitted(stage, "innocent", range(4, 12), 2) == [*range(4, 12)]
    assert budget.denies("large")
    assert not stage.denied_rows
    assert not stage.quarantine


def test_a_job_that_cannot_keep_less_grows_no_further_and_loses_nothing():
    budget = StateBudget(StateLimits(worker_bytes=100_000))
    stage = CommunicatorStage({}, StragglerConfig(), budget)
    assert emitted(stage, "large", range(2), 2) == [0, 1]
    for step in range(2, 200):  # of one rank: nothing can be emitted
        apply_batch(stage, collective("large", 0, step, 2), 2 * step, 10**18)
    assert budget.total < 1.3 * 100_000
    assert not stage.quarantine
    idle_ns = 10**18 + StragglerConfig().idle_ns + 1
    stage.on_tick(10**18, True)
    batches = stage.on_tick(idle_ns, True)
    taken_in = {s for batch in batches for s in batch.columns["step"].tolist()} - {0, 1}
    assert len(taken_in) > 10
    assert stage.denied_rows == 100 * (198 - len(taken_in)), "every row is published or counted"
    for batch in batches:
        stage.mark_sent(batch)
    stage.on_tick(idle_ns, True)
    assert emitted(stage, "large", range(200, 202), 2)[-1:] == [201], "it goes on when it keeps less"


def test_the_default_limit_follows_the_memory(tmp_path):
    limit = tmp_path / "memory.max"
    machine = state_bytes(Settings(), ())
    assert machine > 10**8
    for text, expected in (("max", machine), ("1000000\n", 250_000)):
        limit.write_text(text)
        assert state_bytes(Settings(), (limit, tmp_path / "missing")) == expected
    assert state_bytes(Settings(stream=StreamSettings(state_mb=16))) == 16_000_000


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
    lab.tick(601)
    lab.tick()
    assert not lab.budget.full
    feed(lab, "new", "new")
    assert ("new", "3:new|r") in lab.stage.processes


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_process_that_was_silent_while_the_worker_was_full_replaces_no_window_by_a_part_of_it(is_restarted):
    """Its state was deleted, so a late row of another kernel was published as the whole window, with revision 0."""
    lab = lab_of(worker_bytes=1_000_000)
    lab.feed(kernels([(at + 0.5, 5, "k") for at in range(20)], watermark=20))
    lab.silence()
    expected = lab.table()
    assert expected[("p", 10.0)] == {"k": 10}
    lab.budget.charge("other", 1_000_000)
    lab.tick(601)
    assert not lab.stage.processes
    assert list(lab.store) == ["p|p|1:j|r"], "names and panes are deleted"
    if is_restarted:
        lab.stage.release()
        lab.stage = ProcessWindows(lab.store, lab.config, lab.reducer, lab.budget)
    lab.feed(kernels([(18.7, 5, "z")], watermark=20, sent=lab.now))
    lab.feed(kernels([(700, 5, "z")], watermark=700, sent=lab.now))
    lab.silence()
    assert {where: names for where, names in lab.table().items() if where[1] < 600} == expected
    assert lab.table()[("p", 700.0)] == {"z": 1}
    assert lab.audit() == (21, 1)
    assert not lab.stage.denied_rows
    lab.tick(601)
    lab.tick()
    lab.tick(lab.config.forget_ns / S + 1)
    lab.tick()
    assert (lab.store, lab.budget.jobs) == ({}, {"other": 1_000_000})


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
        apply_batch(stages[batch.topic == "gpu.step.v1"], batch, offset, now_ns)
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
    stage, started = JobStage({}, StragglerConfig()), time.thread_time()
    apply_batch(stage, step(90_000, 20), 0, 10**18)
    assert time.thread_time() - started < 10
    assert len(stage.store) <= 4096 // 20 + 4
    assert stage.too_old == 90_000 - 4096 // 20 - 1


def test_what_was_too_late_stays_counted_when_its_run_is_forgotten():
    """It was counted in each unit and summed after each record: with 5,000 runs in the partition that took 3 ms."""
    stage = JobStage({}, StragglerConfig())
    apply_batch(stage, step(5_000, 1), 0, 10**18)
    apply_batch(stage, step(5_000, 1), 0, 10**18)
    before = stage.too_old, stage.duplicates
    assert before == (2 * (5_000 - 4096), 1)
    for now_ns in (10**18, 10**18 + StragglerConfig().forget_ns + 1):
        stage.on_tick(now_ns, True)
    assert not stage.states
    assert (stage.too_old, stage.duplicates) == before


def test_a_record_of_300000_chunks_costs_no_more_than_the_steps_that_are_kept():
    n = 300_000
    envelope = {"job": "evil", "run": "evil", "rank": 0, "world_size": 2, "host": "h", "gpu_uuid": "g", "rows": n}
    envelope |= {"communicator": "c", "complete_step": n * 4, "operations": ["AllReduce"]}
    columns = {name: np.zeros(n, np.int64) for name in ("ordinal", "operation", "bytes", "covered_ns")}
    columns |= {"step": np.arange(n) * 4, "start_ns": 10**18 + np.arange(n), "duration_ns": np.full(n, 1000)}
    stage, started = CommunicatorStage({}, StragglerConfig()), time.thread_time()
    apply_batch(stage, Batch("gpu.collective.v1", envelope, columns), 0, 10**18)
    assert time.thread_time() - started < 10
    assert len(stage.store) <= 4096 // 4 + 2
    assert stage.too_old == n - 1024
