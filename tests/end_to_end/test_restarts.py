"""A job that restarts under one run name is one run with attempts, in the tables and on the command line."""

import time

import pytest
from support.pipeline import Pipeline
from support.restarted_job import SECOND, Start, publish, restarted
from support.wait_limit import WAIT_S

from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.producers.identity import run_id

VERDICTS = """SELECT attempt_start, rank, count() AS windows FROM stragglers
WHERE job = {job:String} AND rank >= 0 AND severity >= 'suspect' GROUP BY attempt_start, rank ORDER BY attempt_start"""


@pytest.fixture
def pipeline(clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    pipeline.environment |= {"DRUMLINE_STREAM__WINDOW_STEPS": "20"}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    with pipeline.running():
        yield pipeline


def named(pipeline, job):
    """Return the ranks named in the attempts of a job, in their order."""
    sql = VERDICTS.replace("{job:String}", f"'{job}'")
    return [row["rank"] for row in pipeline.query(sql)]


def wait_named(pipeline, job, ranks):
    wait_until(lambda: time.sleep(0.5) or named(pipeline, job) == ranks, WAIT_S)
    pipeline.wait_stored()
    assert named(pipeline, job) == ranks


@pytest.mark.stack
def test_a_reused_run_name_replaces_nothing(pipeline):
    """Case 04: step numbers start at 0 again. First attempt: rank 1 is late. Second: rank 3."""
    first = Start(time.time_ns() - 60 * SECOND, steps=80, late=1)
    publish(pipeline.settings, restarted("case04", "100", (first,)))
    wait_named(pipeline, "case04", [1])
    cost = "SELECT rank, round(sum(gpu_seconds_lost), 6) AS lost FROM stragglers WHERE rank >= 0 GROUP BY rank"
    [before] = [row["lost"] for row in pipeline.query(cost) if row["rank"] == 1]
    assert before > 3
    second = Start(first.end_ns + 5 * SECOND, steps=80, late=3)
    publish(pipeline.settings, restarted("case04", "100", (second,)))
    wait_named(pipeline, "case04", [1, 3])
    lost = {row["rank"]: row["lost"] for row in pipeline.query(cost)}
    assert lost[1] == before
    assert lost[3] == pytest.approx(before, rel=0.05)
    [counts] = pipeline.query("SELECT count() AS n, uniqExact(attempt_start, step, rank) AS different FROM lateness")
    assert counts == {"n": 640, "different": 640}
    assert pipeline.audit("100")["findings"] == []


@pytest.mark.stack
def test_nodes_that_count_restarts_differently_are_one_attempt(pipeline):
    """Case 03: torchrun on two nodes; a worker of node 0 fails, and only that node's agent counts the restart."""
    runs = {
        rank: run_id({"TORCHELASTIC_RUN_ID": "exp7", "TORCHELASTIC_RESTART_COUNT": str(1 - rank // 2)})
        for rank in range(4)
    }
    first = Start(time.time_ns() - 60 * SECOND, steps=40)
    second = Start(first.end_ns + 5 * SECOND, steps=60, first_step=40, late=1, runs=runs)
    publish(pipeline.settings, restarted("case03", "exp7", (first, second)))
    wait_named(pipeline, "case03", [1])
    [row] = pipeline.query("SELECT groupUniqArray(run) AS runs, max(ranks_seen) AS ranks FROM stragglers")
    assert row == {"runs": ["exp7"], "ranks": 4}
    assert "rank 1" in pipeline.drumline("explain", "case03")
    assert pipeline.audit("exp7")["findings"] == []
