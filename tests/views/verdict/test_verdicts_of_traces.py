"""Verdicts on traces whose truth is known: a rank that is late in all steps, and recordings that become traces."""

import json

import pytest
from support.kineto_files import export_recording, kernel, small_job, write_job
from support.recordings import folder
from typer.testing import CliRunner

from drumline.cli.query.verdict import app
from drumline.cli.record.import_traces import app as import_app
from drumline.producers.foreign.recognise import Format
from drumline.producers.replay.recording import measured_from
from drumline.producers.replay.trace import read_trace
from drumline.streams.core.thresholds import StragglerConfig
from drumline.views.verdict.answer_text import coverage_lines
from drumline.views.verdict.evaluation import evaluate_job
from drumline.views.verdict.recorded_job import read_job


def invoked(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


def answer(*arguments):
    done = invoked(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def late(tmp_path):
    """Writes a job of four ranks of which rank 2 is late by half of a step."""

    def write(steps=24, **more):
        return write_job(tmp_path, small_job(steps=steps, ranks=4, late_rank=2, late_ns=500_000, **more))

    return write


def test_a_late_rank_is_named_with_its_cost(late):
    result = answer(*late())
    assert result["answer"] == "named"
    [named] = [row for row in result["verdicts"] if row["rank"] >= 0]
    assert (named["rank"], named["cause"]) == (2, "host_stall")
    assert named["lost_share"] == pytest.approx(1 / 3, abs=0.1)
    assert named["lost_s_per_step"] == pytest.approx(0.0005, abs=0.00015)
    assert result["sentence"].startswith("Rank 2 holds this job back")


def test_steps_are_named_as_they_were_recorded(late):
    result = answer(*late(first_step=551))
    assert result["windows"][0]["first_step"] == 551
    assert result["windows"][-1]["last_step"] == 574


def test_steps_that_a_profiler_sampled_give_the_same_answer(late):
    result = answer(*late(first_step=16, distance=5))
    assert result["answer"] == "named"
    [named] = [row for row in result["verdicts"] if row["rank"] >= 0]
    assert named["rank"] == 2
    assert result["windows"][0]["first_step"] == 16
    for budget in result["budgets"]:
        assert budget["steps"] == 24
        assert budget["step_ms"] < 2


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_few_steps_are_insufficient_never_ok(late, steps):
    result = answer(*late(steps))
    assert (result["answer"], result["windows"]) == ("insufficient", [])
    assert len(result["budgets"]) == 4


def test_equal_ranks_name_no_rank(tmp_path):
    result = answer(*write_job(tmp_path, small_job(steps=24, ranks=4)))
    assert (result["answer"], result["verdicts"]) == ("none", [])
    assert all(budget["last_at"] == 0 for budget in result["budgets"])


def test_most_ranks_of_a_job_are_enough_and_the_missing_one_is_stated(late):
    paths = late()
    result = answer(*paths[1:])
    assert result["world_size"] == 4
    assert any(note.startswith("1 of the job's 4 ranks have no file: 0") for note in result["notes"])


def test_the_text_begins_with_the_answer_and_ends_with_what_would_make_it_surer(late, tmp_path):
    done = invoked(*late(4))
    lines = done.stdout.splitlines()
    assert lines[0].startswith(("Rank 2", "Insufficient data", "No rank"))
    assert "time of each rank" in done.stdout
    assert "Record 20 steps or more" in lines[-1]


def test_the_page_has_the_answer_and_loads_nothing(late, tmp_path):
    page = tmp_path / "verdict.html"
    done = invoked(*late(), "--html", page)
    assert done.exit_code == 0
    text = page.read_text()
    assert "Rank 2 holds this job back" in text
    assert text.count('class="bar"') == 4
    for outside in ("<script", "http:", "https:", "@import"):
        assert outside not in text


def test_a_bad_file_ends_with_its_name_and_no_traceback(late, tmp_path):
    paths = late()
    paths[3].write_text(paths[3].read_text()[:2000])
    done = invoked(*paths)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"drumline verdict: {paths[3]}: byte ")
    assert done.stderr.count("\n") == 1


def test_a_recording_that_import_writes_has_the_same_verdict(late, tmp_path):
    paths = late()
    done = CliRunner().invoke(import_app, [*map(str, paths), "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "4 ranks, steps 10 to 33, 192 kernels, 0 copies, 96 operations of NCCL (kineto)" in done.stdout
    direct, imported = answer(*paths), answer(tmp_path / "out")
    assert imported["verdicts"] == direct["verdicts"]
    assert imported["windows"] == direct["windows"]
    again = CliRunner().invoke(import_app, [*map(str, paths), "-o", str(tmp_path / "out")])
    assert again.exit_code == 2
    assert "exists already" in again.stderr


@pytest.mark.traces
@pytest.mark.parametrize("name", ["mesh-2x2", "fsdp"])
def test_a_recording_exported_as_traces_has_the_same_verdicts(tmp_path, name):
    source = folder(name)
    trace = read_trace(source)
    paths = export_recording(trace, measured_from(trace), tmp_path)
    config = StragglerConfig()
    exported = evaluate_job(read_job(paths, Format.KINETO, name), config, 5)
    recorded = evaluate_job(read_job([source], Format.RECORDING, name), config, 5)
    assert any(row.severity > 1 for window in recorded.windows for row in window.rows)
    for first, second in zip(exported.windows, recorded.windows, strict=True):
        assert (first.first_step, first.last_step) == (second.first_step, second.last_step)
        rows = [[(r.rank, r.severity, r.cause, r.detail, round(r.share, 3)) for r in w.rows] for w in (first, second)]
        assert rows[0] == rows[1]


def test_communication_that_is_not_nccls_is_stated_as_not_understood_with_its_share(tmp_path):
    job = small_job(steps=12)
    for events in job:
        for step, begin in enumerate(range(1_000_000, 13_000_000, 1_000_000)):
            name = "void deep_ep::internode::dispatch<true, 7168>(void*)"
            events += kernel(name, begin + 450_000, 50_000, 10 * step + 5, stream=9)
    files = write_job(tmp_path, job)
    result = evaluate_job(read_job(files, Format.KINETO, "job"), StragglerConfig(window_steps=20))
    assert [row["rank"] for row in result.as_json()["not_understood"]] == [0, 1]
    share = result.as_json()["not_understood"][0]["share"]
    assert 0.045 < share < 0.07  # 50 of 750 to 1,000 us
    [line] = [line for line in coverage_lines(result) if line.startswith("Not understood")]
    assert f"{share:.1%} of the time of steps, on 2 ranks" in line
    assert "dispatch" in line
