"""Hangs end to end: processes that stall, NCCL's plugin, agent, Kafka, worker, sink, the row in `hangs`."""

import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from support.fake_nccl import COMPILER, FAKE, PROGRAMS
from support.pipeline import Pipeline
from support.published_spool import is_published
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
#: Ways to hang in Python, and in NCCL or by the process, with the reason and the ranks that are named.
PYTHON_WAYS = {way: ("not_called", {1}) for way in ("sleep", "lock", "loader", "exception")}
NCCL_WAYS = {
    "stop": ("stopped", {1}), "kill": ("gone", {1}), "gpu": ("not_started", {1}),
    "operation": ("mismatch", {0, 1}), "size": ("mismatch", {0, 1}), "order": ("deadlock", {0, 1}),
}  # fmt: skip
WAYS = PYTHON_WAYS | NCCL_WAYS
HANGING = Path(__file__).parents[1] / "support" / "labs" / "hanging_python.py"
#: The function of a way, where its name is another.
FUNCTIONS = {"exception": "retry"}
#: Most time from the last operation until a job stands still, by the worker's clock; s. The target is 12 s: 10 s and a
#: round of the agent. More than twice as long is wrong at any load.
STANDING_S = 30.0


def expected_lines():
    """Return where the main thread of rank 1 stands, by way: the line that is marked with it."""
    numbered = enumerate(HANGING.read_text().splitlines(), 1)
    numbers = {way: number for number, line in numbered if (way := line.partition("  # ")[2]) in PYTHON_WAYS}
    assert numbers.keys() == PYTHON_WAYS.keys()
    return {way: f"{FUNCTIONS.get(way, way)} ({HANGING}:{number})" for way, number in numbers.items()}


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
@pytest.mark.timeout(900)
def test_a_hanging_rank_is_named_in_the_store_and_the_job_goes_over_to_hung_and_over(
    clean_stack, environment_of, tmp_path
):
    program = tmp_path / "fake-nccl"
    library = tmp_path / "fake-nccl.so"
    subprocess.run([*COMPILER, "-o", program, PROGRAMS / "fake_nccl.c", *FAKE], check=True)
    subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", library, PROGRAMS / "fake_nccl.c", *FAKE[:2]], check=True)
    commands = {way: [sys.executable, str(HANGING), str(library), way] for way in PYTHON_WAYS}
    plain = ["sh", "-c", 'exec "$0" "$NCCL_PROFILER_PLUGIN" 5 hang', str(program)]
    commands |= dict.fromkeys(NCCL_WAYS, plain)
    environment = environment_of(clean_stack) | {"DRUMLINE_STREAM__HUNG_S": "40", "PATH": os.environ["PATH"]}
    environment["DRUMLINE_SPOOL__ROOT"] = str(tmp_path / "spool")
    pipeline = Pipeline(clean_stack, environment, tmp_path)
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)

    def results(state):
        rows = pipeline.query(
            "SELECT run, rank, reason, operation, number, dateDiff('millisecond', start, time) / 1e3 AS took_s "
            f"FROM hangs WHERE state = '{state}' AND rank >= 0 "
            "ORDER BY run, revision, rank"
        )
        return {(row["run"], row["rank"]): row for row in rows}

    def lines():
        """Return where the main thread of rank 1 was, by job."""
        rows = pipeline.query("SELECT job, at FROM hot_stacks WHERE verdict = 'hang' AND rank = 1 AND is_main = 1")
        return {row["job"]: row["at"] for row in rows if row["job"] in PYTHON_WAYS}

    def wait_for(read, wanted):
        until = time.monotonic() + WAIT_S
        while not wanted <= read().keys() and time.monotonic() < until:
            time.sleep(1)  # a reader's queries are limited
        rows = read()
        assert wanted <= rows.keys(), rows
        return rows

    def launch(ways):
        command = [sys.executable, "-m", "drumline.infra.cli.app", "run", "--policy", "light"]
        for way in ways:
            launched = [*command, "--job", way, "--run", way, "--", "sh", "-c", LAUNCHER, way, *commands[way]]
            jobs.append(subprocess.Popen(launched, env=pipeline.environment))
        return {(way, rank) for way, (_, ranks) in WAYS.items() if way in ways for rank in ranks}

    jobs = []
    with pipeline.running():
        try:
            named = launch(PYTHON_WAYS)  # one after another is sampled, while its verdict is less than a minute old
            assert wait_for(lines, PYTHON_WAYS.keys()) == expected_lines()
            named |= launch(NCCL_WAYS)
            standing = wait_for(partial(results, "standing"), named)
            assert standing.keys() == named, "a rank that waits is named"
            for (way, rank), row in standing.items():
                operation = "AllGather" if (way, rank) == ("operation", 1) else "AllReduce"
                shown = row["reason"], row["operation"], row["number"]
                assert shown == (WAYS[way][0], operation, STEPS + 1), standing
            took = sorted(row["took_s"] for row in standing.values())
            print(f"standing after {took[0]:.1f} to {took[-1]:.1f} s, load {os.getloadavg()[0]:.1f}")
            assert took[-1] <= STANDING_S, took
            assert wait_for(partial(results, "hung"), named).keys() == named
            shown = pipeline.drumline("top", "--once", "--job", "sleep")
            assert f"Rank 1 has not called AllReduce {STEPS + 1}" in " ".join(shown.split())
        finally:
            for job in jobs:
                job.terminate()
        over = wait_for(partial(results, "over"), named)
        assert {row["reason"] for row in over.values()} == {""}
        reasons = {(way, rank): reason for way, (reason, ranks) in WAYS.items() for rank in ranks}
        assert {key: row["reason"] for key, row in results("hung").items()} == reasons, "its end is no reason"
        assert wait_until(lambda: is_published(tmp_path / "spool"), WAIT_S), "the agent has rows left"
        assert wait_until(lambda: pipeline.audit("sleep")["clean"], WAIT_S)
    assert f"Rank 1 has not called AllReduce {STEPS + 1}" in pipeline.drumline(
        "report", "--job", "sleep", "-o", str(tmp_path / "report.html")
    )
