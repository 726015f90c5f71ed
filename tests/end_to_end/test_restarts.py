"""A job that restarts under one run name is one run with attempts, in the tables and on the command line."""

import re
import time
from datetime import UTC, datetime
from random import Random

import pytest
from support.pipeline import Pipeline
from support.restarted_job import SECOND, Start, publish, restarted
from support.wait_limit import WAIT_S

from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess
from drumline.producers.identity import run_id
from drumline.schemas.topics import Topic
from drumline.views.report.queries import STEPS_EXTENT
from drumline.views.timeline.queries import EXTENT

#: Of the long test: jobs, and restarts of each.
JOBS, RESTARTS = 10, 5
VERDICTS = """SELECT attempt_start, rank, count() AS windows FROM stragglers
WHERE job = {job:String} AND rank >= 0 AND severity >= 'suspect' GROUP BY attempt_start, rank ORDER BY attempt_start"""


@pytest.fixture
def pipeline(clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    environment = {**pipeline.environment, "DRUMLINE_STREAM__WINDOW_STEPS": "20"}
    pipeline.programs["stream"] = ManagedProcess("stream", ["stream"], tmp_path / "stream.log", environment)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    with pipeline.running():
        yield pipeline


def named(pipeline, job):
    """Return the ranks named in the attempts of a job, in their order."""
    sql = VERDICTS.replace("{job:String}", f"'{job}'")
    return [row["rank"] for row in pipeline.query(sql)]


def filled(sql, texts):
    """Return a statement with texts for its parameters."""
    return re.sub(r"\{(\w+):[^}]+\}", lambda match: f"'{texts[match[1]]}'", sql)


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
    texts = {"job": "case04", "run": "100", "since": "1970-01-01 00:00:00", "until": "2200-01-01 00:00:00"}
    [extent] = pipeline.query(filled(EXTENT, texts))
    assert extent == {"rows": 320, "first": 0, "last": 79}, "a trace has the steps of the newest attempt"
    [newest] = pipeline.query(filled(STEPS_EXTENT, texts))
    between = str(datetime.fromtimestamp(first.end_ns / 1e9 + 1, UTC))[:19]
    [earlier] = pipeline.query(filled(STEPS_EXTENT, {**texts, "until": between}))
    assert (newest["steps"], earlier["steps"]) == (80, 80)
    assert newest["median_ms"] == pytest.approx(earlier["median_ms"], rel=0.2)


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


def random_starts(number, begin_ns):
    """Return (starts, ranks planted) of a job that is lost and restarts five times: a worker, or a node; more or fewer
    ranks; from step 0 or from the middle. An attempt that ends before the third window names nobody.
    """
    random, starts, planted = Random(number), list[Start](), list[int]()
    ranks, first, at = 4, 0, begin_ns
    for _ in range(RESTARTS + 1):
        steps, late = random.choice((60, 70, 85)), random.randrange(ranks)
        lost = random.choice(((), (random.randrange(ranks),), tuple(range(ranks // 2, ranks))))
        starts.append(Start(at, ranks=ranks, steps=steps, first_step=first, late=late, lost=lost))
        planted.append(late)
        first = random.choice((0, first + steps // 2, first + steps - 10))
        ranks = random.choice((4, 2) if ranks == 4 else (4,))
        at = starts[-1].end_ns + random.randrange(2, 20) * SECOND
    return starts, planted


@pytest.mark.long
@pytest.mark.stack
def test_fifty_random_restarts_are_attempts_of_their_runs(pipeline):
    """Ten jobs of two hosts, five restarts each: attempts, verdicts, keys and sequences are right."""
    now, jobs = time.time_ns(), {}
    for number in range(JOBS):
        jobs[f"elastic{number}"] = random_starts(number, now - 900 * SECOND)
    sent = {}
    for job, (starts, _) in jobs.items():
        stream = restarted(job, "r", starts)
        sent[job] = sum(batch.rows for _, batch in stream if batch.topic == Topic.STEP)
        publish(pipeline.settings, stream)
    wait_until(lambda: time.sleep(1) or all(named(pipeline, job) == ranks for job, (_, ranks) in jobs.items()), WAIT_S)
    pipeline.wait_stored()
    for job, (starts, ranks) in jobs.items():
        assert named(pipeline, job) == ranks, job
        attempts = pipeline.query(
            "SELECT run, attempt, toUnixTimestamp64Nano(attempt_start) AS begin, last_step FROM attempts "
            f"WHERE job = '{job}' ORDER BY attempt"
        )
        assert [(row["run"], row["attempt"], row["begin"]) for row in attempts] == [
            ("r", number, start.begin_ns) for number, start in enumerate(starts, 1)
        ]
        sizes = pipeline.query(
            f"SELECT max(ranks_seen) AS seen FROM stragglers WHERE job = '{job}' GROUP BY attempt_start "
            "ORDER BY attempt_start"
        )
        assert [row["seen"] for row in sizes] == [start.ranks for start in starts]
        [keys] = pipeline.query(
            "SELECT count() AS rows, uniqExact(attempt_start, communicator, step, rank) AS keys, "
            f"(SELECT count() FROM steps WHERE job = '{job}') AS steps FROM lateness WHERE job = '{job}'"
        )
        assert keys["steps"] == sent[job] < sum(start.ranks * start.steps for start in starts)
        assert sent[job] >= keys["rows"] == keys["keys"] > sent[job] * 0.9
        assert len(pipeline.query(f"SELECT run FROM jobs WHERE job = '{job}'")) == 1
        text = pipeline.drumline("explain", job)
        assert f"Attempt {len(starts)} of this run" in text
        assert "never reported" not in text
    assert pipeline.audit("r")["findings"] == []
