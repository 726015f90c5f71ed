"""The max-plus model: unmodified it repeats the recording; faults cost what waits for them, and no more."""

from dataclasses import replace

import numpy as np
import pytest
from support.pipeline_simulator import simulate_pipeline
from support.simulated_rows import healthy_rows, healthy_runs, rows_of
from support.straggler_simulator import mesh

from drumline.lab.evaluate.curve.injection import KINDS, Injection, delays
from drumline.lab.evaluate.curve.replayed_job import closeness, replay
from drumline.lab.evaluate.curve.timings import runs_of_steps

STEP_NS, TRANSFER_NS = 62e6, 2e6


def replayed(runs, *injections, ranks=2):
    [steps] = runs
    added = delays(injections, len(steps), ranks, STEP_NS, TRANSFER_NS)
    return replay(steps, added).step_times()


@pytest.mark.parametrize("layout", ["ddp", "mesh"])
def test_an_unmodified_replay_repeats_the_recording(layout):
    rows = healthy_rows() if layout == "ddp" else healthy_rows(4, layout=lambda _: mesh(2, 2))
    close = closeness(healthy_runs(rows))
    assert close.steps == 59
    assert max(close.step_p95, abs(close.total)) < 1e-5
    assert close.call_p95_us < 0.1


def test_sends_of_a_pipeline_are_repeated_too():
    close = closeness(runs_of_steps(rows_of(simulate_pipeline((1.0, 1.2), 1, 30)), [(0, 29)]))
    assert close.steps == 29
    assert close.step_p95 < 0.01


def test_a_recording_whose_ranks_leave_apart_is_not_repeated_closely():
    rows = healthy_rows()
    late = rows.collectives[1]
    late["duration_ns"] = np.where(late["ordinal"] == 0, 3 * late["duration_ns"] + 10_000_000, late["duration_ns"])
    assert closeness(healthy_runs(rows)).call_p95_us > 10_000


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "bursts"])
def test_a_fault_of_a_job_without_jitter_costs_its_size_on_average(kind):
    without, faulty = replayed(healthy_runs(healthy_rows()), None, Injection(kind, 0.2, 1, 19))
    assert np.allclose(without[:19], faulty[:19])
    assert (faulty[19:].sum() - without[19:].sum()) / (40 * STEP_NS) == pytest.approx(0.2, abs=0.01)


def test_a_delay_that_the_rank_would_have_waited_for_costs_nothing():
    runs = healthy_runs(healthy_rows(noise=0.0))
    busy = [
        replace(step, operations=tuple(replace(o, gap_ns=o.gap_ns * np.array([1.0, 2.0])) for o in step.operations))
        for step in runs[0]
    ]
    without, faulty, much = replayed([busy], None, Injection("host", 0.5, 0, 9), Injection("host", 1.5, 0, 9))
    assert faulty.sum() == pytest.approx(without.sum())
    assert much.sum() > 1.1 * without.sum()


def test_a_receiver_waits_for_its_sender_and_not_the_sender_for_it():
    rows = rows_of(simulate_pipeline((1.0, 1.0), 1, 20, noise=0.0))
    runs = runs_of_steps(rows, [(0, 19)])
    [steps] = runs
    first = steps[0].operations[0]
    added = delays([None, Injection("loader", 0.5, 0, 0), Injection("loader", 0.5, 1, 0)], len(steps), 2, STEP_NS, 1.0)
    job = replay(steps, added)
    assert first.members.tolist() == [0, 1]
    waited = job.duration[:, 1]
    assert waited[1] == pytest.approx(waited[0] + 0.5 * STEP_NS, rel=0.01)
    assert job.duration[2, 0] == job.duration[0, 0]


def test_a_step_with_a_missing_operation_is_left_out():
    rows = healthy_rows()
    lost = rows.collectives[1]
    keep = ~((lost["step"] == 30) & (lost["ordinal"] == 2))
    rows.collectives[1] = {name: column[keep] for name, column in lost.items()}
    runs = healthy_runs(rows)
    assert [(run[0].step, run[-1].step) for run in runs] == [(1, 29), (31, 59)]
