"""Published methods over the recorded demo job, scored like drumline; each follows its description."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support import trace_mutations as mutations
from support.recordings import phases
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app
from drumline.lab.demo_recording import DEMO_RECORDING
from drumline.lab.evaluate.compare import METHODS, MethodResult, compare
from drumline.lab.evaluate.comparison_table import cell
from drumline.lab.evaluate.methods import hta, ingero, longest, nvrx, traceml
from drumline.lab.evaluate.scoring import EvaluationReport, evaluate_phases
from drumline.lab.evaluate.window_input import Job, job_of, rows
from drumline.producers.replay.trace import read_trace

TERMINAL = {"COLUMNS": "80", "TTY_COMPATIBLE": "1", "TERM": "dumb"}


@pytest.fixture(scope="module")
def trace():
    return read_trace(DEMO_RECORDING)


@pytest.fixture(scope="module")
def job(trace):
    return job_of(trace, 5)


def ranks_found(job, named, score):
    """Fault phase -> ranks found, healthy ones under "healthy"; and what was injected."""
    evaluated = evaluate_phases(phases(DEMO_RECORDING), rows(job, named, score)).phases
    return [(p.expected_ranks, p.found_ranks) for p in evaluated if p.counted]


def faults(pairs):
    return [ranks for injected, ranks in pairs if injected]


def healthy(pairs):
    return [ranks for injected, ranks in pairs if not injected]


def test_the_command_prints_every_method_and_keeps_its_exit_code():
    result = CliRunner().invoke(app, [str(DEMO_RECORDING), "--window-steps", "5", "--compare", "--json"])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["window_steps"] == 5
    assert [m["method"] for m in answer["methods"]] == ["drumline", *(m.name for m in METHODS)]
    assert all(
        [p["phase"] for p in m["phases"]] == [p["phase"] for p in phases(DEMO_RECORDING)] for m in answer["methods"]
    )
    drumline, *published = answer["methods"]
    assert (drumline["recall"], drumline["false_alarms"], drumline["victims"]) == (1.0, 0, 0)
    assert all(m["source"] for m in published)


def test_the_table_names_all_methods_and_what_they_lack():
    result = CliRunner().invoke(app, [str(DEMO_RECORDING), "--window-steps", "5", "--compare"], env=TERMINAL)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout
    assert "*: not exactly the injected ranks" in result.stdout
    assert all(method.name in result.stdout for method in METHODS)
    assert "innocent ranks" in result.stdout
    assert "without context switches" in " ".join(result.stdout.split())


def test_windows_are_those_of_the_verdicts(job):
    assert job.shape == (4, 25)
    assert job.first_steps.tolist() == list(range(0, 125, 5))
    assert job.window_of(np.array([-1, 0, 4, 5, 124, 125])).tolist() == [-1, 0, 0, 1, 24, -1]


def test_longest_collective_names_only_those_who_wait(job):
    for injected, ranks in ranks_found(job, *longest.verdicts(job)):
        assert not set(injected) & set(ranks)
        assert bool(ranks) == bool(injected)


def test_nvrx_does_not_see_a_late_host_or_slow_copies_in_kernel_durations(job):
    assert faults(ranks_found(job, *nvrx.relative(job))) == [[], [], [], []]


def test_nvrx_scores_against_the_fastest_rank_and_weights_by_time():
    medians = np.array([[[100.0, 50.0, 10.0]], [[200.0, 50.0, np.nan]]])
    weights = np.array([[[300.0, 100.0, 900.0]], [[300.0, 100.0, 0.0]]])
    named, lack = nvrx._named(medians.min(0, keepdims=True), medians, weights)
    assert lack[:, 0].tolist() == [0.0, pytest.approx(1 - (0.5 * 300 + 1.0 * 100) / 400)]
    assert named[:, 0].tolist() == [False, True]


def test_nvrx_takes_medians_per_kernel_and_window():
    group = np.array([0, 0, 0, 2, 2])
    medians, spent = nvrx._grouped(group, np.array([9, 1, 2, 4, 6]), 3, (3,))
    assert medians[[0, 2]].tolist() == [2.0, 5.0]
    assert np.isnan(medians[1])
    assert spent.tolist() == [12.0, 0.0, 10.0]


def test_traceml_finds_who_does_not_wait_in_a_plain_ddp_job(job):
    named, score, causes = traceml.verdicts(job)
    assert faults(ranks_found(job, named, score)) == [[2], [0], [3], []]
    assert healthy(ranks_found(job, named, score)) == [[]] * 5
    assert named.sum(0).max() == 1  # one culprit a window, by construction
    assert causes[3][17] == "slow_copy"


def test_start_times_mean_nothing_without_a_common_clock(trace):
    off = mutations.clocks(trace, [0, 0, 0, 20_000_000], [0.0] * 4)
    job = job_of(off, 5)
    assert healthy(ranks_found(job, *hta.verdicts(job, hta.SIGNIFICANT))) == [[3]] * 5


def test_the_latest_start_names_a_rank_in_healthy_windows_too(job):
    assert sum(map(bool, healthy(ranks_found(job, *hta.verdicts(job))))) >= 3
    assert not any(healthy(ranks_found(job, *hta.verdicts(job, hta.SIGNIFICANT))))


def test_ingero_freezes_its_average_while_launches_are_down():
    drops = ingero.drops(np.array([100, 100, 100, 60, 60, 60, 60, 90]))
    assert drops.tolist() == [0, 0, 0, *[pytest.approx(0.4)] * 4, 0]


def test_ingero_needs_three_samples():
    assert ingero.drops(np.array([100, 10, 10])).tolist() == [0, 0, pytest.approx(1 - 10 / 82)]


def test_a_job_without_steps_names_no_rank(job):
    empty = Job(5, job.first_steps[:0], job.derived)
    for method in METHODS:
        assert list(method.verdicts(empty)) == []


def test_cells_show_what_is_not_exactly_right():
    phase = {"phase": "late", "fault_ranks": [2], "first_step": 0, "last_step": 9}
    quiet = {"phase": "healthy", "fault_ranks": [], "first_step": 10, "last_step": 14}
    blank = Job(5, np.array([0, 5, 10]), (None, None, None))
    named = np.zeros((3, 3), bool)
    named[1], named[2, :2] = True, True
    evaluated = evaluate_phases([phase, quiet], rows(blank, named, named.astype(float)))
    assert [cell(p) for p in evaluated.phases] == ["1 2 *", "1 *"]
    assert MethodResult("m", "", "", evaluated).victims == 1


def test_drumline_is_scored_with_the_rest(job):
    drumline = EvaluationReport([])
    assert compare(DEMO_RECORDING, 5, [], drumline)[0].report is drumline
