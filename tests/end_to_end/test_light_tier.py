"""The light tier end to end: processes without Python, the plugin, agent, Kafka, worker, sink, verdicts and report."""

import os
import subprocess
import sys
import time

import pytest
from support.fake_nccl import Programs
from support.light_job import LATE, LAUNCHER, PER_STEP, RANKS, STEPS
from support.pipeline import Pipeline
from support.published_spool import is_published
from support.wait_limit import WAIT_S

from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess


def start_job(pipeline, programs, cause):
    command = ["run", "--policy", "light", "--job", cause, "--run", cause, "--", "sh", "-c", LAUNCHER]
    return subprocess.Popen(
        [sys.executable, "-m", "drumline.cli.app", *command, str(programs.folder / "fake-plain"), cause],
        env=pipeline.environment,
    )


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
def test_operations_of_a_c_job_are_stored_and_the_verdict_names_the_late_rank(clean_stack, environment_of, tmp_path):
    programs = Programs(tmp_path)
    programs.require("plain")
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool = tmp_path / "spool"
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    agent = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    pipeline.programs["agent"] = agent
    with pipeline.running():
        jobs = [start_job(pipeline, programs, cause) for cause in ("host", "gpu")]
        assert [job.wait(WAIT_S) for job in jobs] == [0, 0]
        assert wait_until(lambda: is_published(spool), WAIT_S), "rings or spools are left"

        def verdicts():
            named = pipeline.query(
                "SELECT DISTINCT run, rank, cause FROM stragglers WHERE severity >= 'warning' AND rank >= 0 ORDER BY 1"
            )
            return [(row["run"], row["rank"], row["cause"]) for row in named]

        until = time.monotonic() + WAIT_S
        while len(verdicts()) < 2 and time.monotonic() < until:
            time.sleep(0.5)  # a reader's queries are limited
        assert verdicts() == [("gpu", LATE, "slow_gpu"), ("host", LATE, "host_stall")]
        pipeline.wait_stored()
    stored = pipeline.query(
        "SELECT run, rank, uniqExact(step) AS steps, count() AS n, groupUniqArray(source) AS sources FROM collectives "
        "GROUP BY run, rank ORDER BY run, rank"
    )
    expected = [(run, rank, STEPS, STEPS * PER_STEP, ["nccl"]) for run in ("gpu", "host") for rank in range(RANKS)]
    assert [tuple(row.values()) for row in stored] == expected
    steps = pipeline.query(
        "SELECT run, rank, count() AS n FROM steps WHERE source = 'nccl' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    assert [tuple(row.values()) for row in steps] == [row[:3] for row in expected]
    for run in ("gpu", "host"):
        assert pipeline.audit(run)["clean"]
        assert f"Rank {LATE} " in pipeline.drumline("report", "--job", run, "-o", str(tmp_path / "report.html"))
