"""`drumline evaluate` prints the verdicts on a table of operations, which has no phases."""

import json

import pytest
from support.operation_tables import step_rows, write_table
from typer.testing import CliRunner

from drumline.cli.query.evaluate import app
from drumline.lab.evaluate.operation_verdicts import OperationVerdicts, evaluate_operations
from drumline.producers.replay.operation_table.job import OperationJob
from drumline.streams.core.thresholds import StragglerConfig


@pytest.fixture
def path(tmp_path):
    """A table of 24 steps; in the last 12 of them the first replica's ranks are 3 s late."""
    rows = [row for step in range(24) for row in step_rows(10 * step, late_s=3.0 * (step >= 12))]
    return write_table(tmp_path, rows)


def test_windows_are_as_short_as_the_table_needs(path):
    assert evaluate_operations(path, StragglerConfig()).window_steps == 3
    assert evaluate_operations(path, StragglerConfig(window_steps=2)).window_steps == 2
    assert evaluate_operations(path, StragglerConfig(), 5).window_steps == 5


def test_a_late_rank_is_named_by_its_renumbered_and_its_recorded_number(path):
    result = evaluate_operations(path, StragglerConfig(window_steps=4))
    named = {row.rank for row in result.findings}
    assert 0 in named
    assert not {1, 3} & named, "the replica that is on time"
    assert result.described(2) == "rank 2 (recorded as 8), stage 1, replica 0"
    assert result.described(0) == "rank 0, stage 0, replica 0"


def test_waits_that_were_not_recorded_are_stated_for_the_ranks_that_have_them(path):
    job = OperationJob(path)
    job.unrecorded_ns[2] = 3_000_000_000
    job.unrecorded_ns[3] = 1_000_000
    shares = OperationVerdicts(job, 4, []).unrecorded_shares()
    assert shares == {2: pytest.approx(3.0 / 8.0, rel=0.05)}


def test_the_command_prints_verdicts_and_what_was_not_recorded(path):
    out = CliRunner().invoke(app, [str(path), "--window-steps", "4"])
    assert out.exit_code == 0, out.output
    assert "rank 0, stage 0, replica 0" in out.output
    assert "6 windows, 0 not evaluated" in out.output


def test_the_command_prints_json_by_folder_too(path):
    out = CliRunner().invoke(app, [str(path.parent), "--window-steps", "4", "--json"])
    assert out.exit_code == 0, out.output
    result = json.loads(out.stdout)
    assert result["recorded_ranks"] == [0, 4, 8, 12]
    assert len(result["windows"]) == 6
    last = {row["rank"]: row for row in result["windows"][-1]["rows"]}
    assert set(last) == {-1, 0, 1, 2, 3}
    assert last[1]["severity"] == "ok"
    assert 0.0 < last[0]["lost_share"] <= 1.0


@pytest.mark.parametrize("option", ["--light", "--compare"])
def test_options_that_need_kernels_are_rejected(path, option):
    out = CliRunner().invoke(app, [str(path), option])
    assert out.exit_code == 2
    assert "need a recording with kernels" in out.output


def test_a_broken_table_is_bad_input(path):
    path.with_name("meta-job.yaml").write_text("dp_size: 2\n")
    out = CliRunner().invoke(app, [str(path)])
    assert out.exit_code == 2
    assert "pp_size is missing" in out.output
