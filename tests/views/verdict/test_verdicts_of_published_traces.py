"""`drumline verdict` on traces that others published: the right answer each by one command."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from drumline.cli.query.verdict import app

DATA = Path(__file__).parents[2] / "data" / "foreign"


def verdict(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_one_step_of_eight_ranks_is_insufficient_and_has_a_budget_each():
    answer = verdict(DATA / "dlrm")
    assert (answer["answer"], answer["steps"], answer["window_steps"]) == ("insufficient", 1, 0)
    assert answer["verdicts"] == answer["windows"] == []
    assert "a name needs 8 or more" in answer["sentence"]
    assert [budget["rank"] for budget in answer["budgets"]] == list(range(8))
    for budget in answer["budgets"]:
        parts = sum(budget[f"{name}_ms"] for name in ("compute", "copy", "exposed", "idle"))
        assert parts == pytest.approx(budget["step_ms"], abs=1e-6)
        assert budget["compared"] == 8
        assert budget["host_times"]["synchronisation"] > 0
    assert {b["rank"]: b["last_at"] for b in answer["budgets"] if b["last_at"]} == {4: 1, 5: 2, 7: 5}
    assert "Rank 7 came last to 5 of 8 collectives" in answer["sentence"]


def test_two_of_128_ranks_are_insufficient():
    answer = verdict(DATA / "hta" / "sampled_rank-0.json.gz", DATA / "hta" / "sampled_rank-1.json.gz")
    assert (answer["answer"], answer["ranks"], answer["world_size"]) == ("insufficient", [0, 1], 128)
    assert "came last" not in answer["sentence"]
    assert answer["notes"][0].startswith("126 of the job's 128 ranks have no file")
    assert len(answer["budgets"]) == 2


def test_the_slowed_rank_of_a_table_is_named():
    answer = verdict(DATA / "operations" / "trace-AR.parquet")
    assert answer["answer"] == "named"
    [named] = [row for row in answer["verdicts"] if row["rank"] >= 0]
    assert (named["rank"], named["level"], named["cause"], named["detail"]) == (
        0,
        "critical",
        "slow_compute",
        "same_work",
    )
    assert named["described"] == "rank 0, stage 0, replica 0"
    assert named["lost_share"] > 0.3


@pytest.mark.parametrize("name", ["ST", "SE"])
def test_unequal_stages_and_lengths_name_no_rank(name):
    answer = verdict(DATA / "operations" / f"trace-{name}.parquet")
    assert answer["answer"] != "named"
    assert all(row["rank"] < 0 for row in answer["verdicts"])
    assert any(window["evaluated"] for window in answer["windows"])
