"""Hangs end to end: processes that stall, NCCL's plugin, agent, Kafka, worker, sink, the row in `hangs`."""

import os
import subprocess
import sys
import time

import pytest
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.runtime.processes import ManagedProcess

RANKS, STEPS, STEP_S = 3, 40, 0.05
#: Ranks of one job, below one `drumline run`; rank 1 hangs.
LAUNCHER = f"""
begin=$(($(date +%s%3N) + 1000)) ranks=
for rank in {" ".join(map(str, range(RANKS)))}; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={RANKS} BEGIN_MS=$begin STEPS={STEPS} HOW=$1 \\
        "$0" "$NCCL_PROFILER_PLUGIN" 5 hang & ranks="$ranks $!"
done
trap "kill -9 $ranks 2> /dev/null; exit 0" TERM
wait
"""
JOBS = {"sleep": "not_called", "stop": "stopped", "kill": "gone", "operation": "mismatch", "gpu": "not_started"}
#: Time from the last operation to the row in ClickHouse; s. A second or two is the sink's.
STANDING_S = 12.0


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
def test_a_hanging_rank_is_named_in_the_store_and_the_job_goes_over_to_hung_and_over(
    clean_stack, environment_of, tmp_path
):
    program = tmp_path / "fake-nccl"
    subprocess.run([*COMPILER, "-o", program, PROGRAMS / "fake_nccl.c", *FAKE], check=True)
    environment = environment_of(clean_stack) | {"DRUMLINE_STREAM__HUNG_S": "20", "PATH": os.environ["PATH"]}
    environment["DRUMLINE_SPOOL__ROOT"] = str(tmp_path / "spool")
    pipeline = Pipeline(clean_stack, environment, tmp_path)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)

    def results(state):
        rows = pipeline.query(
            "SELECT run, rank, reason, operation, number, "
            "dateDiff('millisecond', start, published) / 1e3 AS took_s "
            f"FROM hangs WHERE state = '{state}' AND rank >= 0 "
            "ORDER BY run, revision, rank"
        )
        return {(row["run"], row["rank"]): row for row in rows}

    def wait_for(state, wanted, seconds):
        until = time.monotonic() + seconds
        while not wanted <= set(results(state)) and time.monotonic() < until:
            time.sleep(0.5)  # a reader's queries are limited
        assert wanted <= set(results(state)), (state, results(state))
        return results(state)

    with pipeline.running():
        command = [sys.executable, "-m", "drumline.infra.cli.app", "run", "--policy", "light"]
        jobs = {}
        for how in JOBS:
            launched = [*command, "--job", how, "--run", how, "--", "sh", "-c", LAUNCHER, str(program), how]
            jobs[how] = subprocess.Popen(launched, env=pipeline.environment)
        try:
            culprits = {(how, 1) for how in JOBS} | {("operation", 0)}
            standing = wait_for("standing", culprits, WAIT_S)
            assert set(standing) == culprits, "a rank that waits is named"
            for how, reason in JOBS.items():
                row = standing[how, 1]
                assert (row["reason"], row["number"]) == (reason, STEPS + 1)
                assert row["took_s"] <= STANDING_S, standing
            assert set(wait_for("hung", culprits, WAIT_S)) == culprits
            shown = pipeline.drumline("top", "--once", "--job", "sleep")
            assert f"Rank 1 has not called AllReduce {STEPS + 1}" in " ".join(shown.split())
        finally:
            for job in jobs.values():
                job.terminate()
        over = wait_for("over", culprits, WAIT_S)
        assert {row["reason"] for row in over.values()} == {""}
        pipeline.wait_stored()
    assert f"Rank 1 has not called AllReduce {STEPS + 1}" in pipeline.drumline(
        "report", "--job", "sleep", "-o", str(tmp_path / "report.html")
    )
    assert pipeline.audit("sleep")["clean"]
