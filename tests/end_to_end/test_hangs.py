"""Hangs end to end: processes that stall, NCCL's plugin, agent, Kafka, worker, sink, the row in `hangs`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.pipeline import Pipeline
from support.wait_limit import WAIT_S

from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess

RANKS, STEPS, STEP_S = 3, 40, 0.05
#: Ranks of one job, below one `drumline run`; rank 1 hangs.
LAUNCHER = f"""
begin=$(($(date +%s%3N) + 10000)) ranks=
for rank in {" ".join(map(str, range(RANKS)))}; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE={RANKS} BEGIN_MS=$begin STEPS={STEPS} HOW=$0 "$@" & ranks="$ranks $!"
done
trap "kill -9 $ranks 2> /dev/null; exit 0" TERM
wait
"""
#: Ways to hang that Python is to blame for, and those that it is not, with the reason and the ranks that are named.
PYTHON = {way: ("not_called", {1}) for way in ("sleep", "lock", "loader", "exception")}
OTHERS = {
    "stop": ("stopped", {1}), "kill": ("gone", {1}), "gpu": ("not_started", {1}),
    "operation": ("mismatch", {0, 1}), "size": ("mismatch", {0, 1}), "order": ("deadlock", {0, 1}),
}  # fmt: skip
JOBS = PYTHON | OTHERS
HANGING = Path(__file__).parents[1] / "support" / "labs" / "hanging_python.py"
#: The function of a way, where its name is another.
FUNCTIONS = {"exception": "retry"}
#: Time from the last operation to the row in ClickHouse; s. A second or two is the sink's.
STANDING_S = 12.0


def marked():
    """(way, number of the line that it hangs in)."""
    for number, line in enumerate(HANGING.read_text().splitlines(), 1):
        if (way := line.partition("  # ")[2]) in PYTHON:
            yield way, number


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
def test_a_hanging_rank_is_named_in_the_store_and_the_job_goes_over_to_hung_and_over(
    clean_stack, environment_of, tmp_path
):
    program = tmp_path / "fake-nccl"
    library = tmp_path / "fake-nccl.so"
    subprocess.run([*COMPILER, "-o", program, PROGRAMS / "fake_nccl.c", *FAKE], check=True)
    subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", library, PROGRAMS / "fake_nccl.c", *FAKE[:2]], check=True)
    commands = {way: [sys.executable, str(HANGING), str(library), way] for way in PYTHON}
    commands |= {way: ["sh", "-c", 'exec "$0" "$NCCL_PROFILER_PLUGIN" 5 hang', str(program)] for way in OTHERS}
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

    def lines():
        """Return where the main thread of rank 1 was, by job."""
        rows = pipeline.query("SELECT job, at FROM hot_stacks WHERE verdict = 'hang' AND rank = 1 AND is_main = 1")
        return {row["job"]: row["at"] for row in rows if row["job"] in PYTHON}

    def wait_for(state, wanted, seconds):
        until = time.monotonic() + seconds
        while not wanted <= set(results(state)) and time.monotonic() < until:
            time.sleep(0.5)  # a reader's queries are limited
        assert wanted <= set(results(state)), (state, results(state))
        return results(state)

    with pipeline.running():
        command = [sys.executable, "-m", "drumline.infra.cli.app", "run", "--policy", "light"]
        jobs = {}
        for how, run in commands.items():
            launched = [*command, "--job", how, "--run", how, "--", "sh", "-c", LAUNCHER, how, *run]
            jobs[how] = subprocess.Popen(launched, env=pipeline.environment)
        try:
            culprits = {(how, rank) for how, (_, ranks) in JOBS.items() for rank in ranks}
            standing = wait_for("standing", culprits, WAIT_S)
            assert set(standing) == culprits, "a rank that waits is named"
            for how, (reason, _) in JOBS.items():
                row = standing[how, 1]
                assert (row["reason"], row["number"]) == (reason, STEPS + 1)
            # The soonest one: ten jobs on a few cores delay each other, which says nothing of the stage.
            took = sorted(row["took_s"] for row in standing.values())
            assert took[0] <= STANDING_S, took
            assert set(wait_for("hung", culprits, WAIT_S)) == culprits
            assert wait_until(lambda: set(lines()) >= set(PYTHON), WAIT_S), lines()
            assert lines() == {way: f"{FUNCTIONS.get(way, way)} ({HANGING}:{number})" for way, number in marked()}
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
