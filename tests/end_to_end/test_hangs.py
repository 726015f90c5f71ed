"""Hangs end to end: processes that stall, NCCL's plugin, agent, Kafka, worker, sink, the row in `hangs`."""

import os
import socket
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
begin=$(($(date +%s%3N) + 10000)) ranks= world=${{WORLD:-{RANKS}}}
for rank in {" ".join(map(str, range(RANKS)))}; do
    RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$world BEGIN_MS=$begin STEPS={STEPS} HOW=$0 "$@" & ranks="$ranks $!"
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
LABS = Path(__file__).parents[1] / "support" / "labs"
#: Ranks that a fake NCCL runs, and ranks that only a fake CUPTI records.
HANGING, ON_GPU = LABS / "hanging_python.py", LABS / "hanging_cupti.py"
WITH_RAS = LABS / "hanging_with_ras.py"
#: The function of a way, where its name is another.
FUNCTIONS = {"exception": "retry"}
#: Most time from the last operation until a job stands still, by the worker's clock; s. The target is 12 s: 10 s and a
#: round of the agent. More than twice as long is wrong at any load.
STANDING_S = 30.0


def marked_lines(path):
    """Return where a way to hang stands in a lab's source: the number of the line that is marked with it, by way."""
    numbered = enumerate(path.read_text().splitlines(), 1)
    return {way: number for number, line in numbered if (way := line.partition("  # ")[2]) in PYTHON_WAYS}


def expected_lines():
    """Return where the main thread of rank 1 stands, by way."""
    numbers = marked_lines(HANGING)
    assert numbers.keys() == PYTHON_WAYS.keys()
    return {way: f"{FUNCTIONS.get(way, way)} ({HANGING}:{number})" for way, number in numbers.items()}


class Watched(Pipeline):
    """A pipeline with an agent on an empty stack, whose `hangs` a test reads. `spool`: of its jobs and the agent."""

    def __init__(self, settings, environment, logs, hung_s):
        self.spool = logs / "spool"
        environment |= {"DRUMLINE_STREAM__HUNG_S": hung_s, "DRUMLINE_SPOOL__ROOT": str(self.spool)}
        super().__init__(settings, environment | {"PATH": os.environ["PATH"]}, logs)
        self.drumline("topics", "apply")
        self.drumline("migrate")
        self.programs["agent"] = ManagedProcess("agent", ["agent"], logs / "agent.log", self.environment)

    def hangs(self, state):
        """Return the named ranks of a state, by run and rank."""
        rows = self.query(
            "SELECT run, rank, reason, operation, number, note, dateDiff('millisecond', start, time) / 1e3 AS took_s "
            f"FROM hangs WHERE state = '{state}' AND rank >= 0 "
            "ORDER BY run, revision, rank"
        )
        return {(row["run"], row["rank"]): row for row in rows}

    def lines(self):
        """Return where the main thread of rank 1 was, by job."""
        rows = self.query("SELECT job, at FROM hot_stacks WHERE verdict = 'hang' AND rank = 1 AND is_main = 1")
        return {row["job"]: row["at"] for row in rows if row["job"] in PYTHON_WAYS}

    def wait_clean(self, run):
        """Wait until all is published, and stored as it was published."""
        assert wait_until(lambda: is_published(self.spool), WAIT_S), "the agent has rows left"
        assert wait_until(lambda: self.audit(run)["clean"], WAIT_S)


def wait_for(read, wanted):
    """Wait until what is read has these keys, and return it."""
    until = time.monotonic() + WAIT_S
    while not wanted <= read().keys() and time.monotonic() < until:
        time.sleep(1)  # a reader's queries are limited
    rows = read()
    assert wanted <= rows.keys(), rows
    return rows


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
    pipeline = Watched(clean_stack, environment_of(clean_stack), tmp_path, "40")

    def launch(ways):
        command = [sys.executable, "-m", "drumline.cli.app", "run", "--policy", "light"]
        for way in ways:
            launched = [*command, "--job", way, "--run", way, "--", "sh", "-c", LAUNCHER, way, *commands[way]]
            jobs.append(subprocess.Popen(launched, env=pipeline.environment))
        return {(way, rank) for way, (_, ranks) in WAYS.items() if way in ways for rank in ranks}

    jobs = []
    with pipeline.running():
        try:
            named = launch(PYTHON_WAYS)  # one after another is sampled, while its verdict is less than a minute old
            assert wait_for(pipeline.lines, PYTHON_WAYS.keys()) == expected_lines()
            named |= launch(NCCL_WAYS)
            standing = wait_for(partial(pipeline.hangs, "standing"), named)
            assert standing.keys() == named, "a rank that waits is named"
            for (way, rank), row in standing.items():
                operation = "AllGather" if (way, rank) == ("operation", 1) else "AllReduce"
                shown = row["reason"], row["operation"], row["number"]
                assert shown == (WAYS[way][0], operation, STEPS + 1), standing
            took = sorted(row["took_s"] for row in standing.values())
            print(f"standing after {took[0]:.1f} to {took[-1]:.1f} s, load {os.getloadavg()[0]:.1f}")
            assert took[-1] <= STANDING_S, took
            assert wait_for(partial(pipeline.hangs, "hung"), named).keys() == named
            shown = pipeline.drumline("top", "--once", "--job", "sleep")
            assert f"Rank 1 has not called AllReduce {STEPS + 1}" in " ".join(shown.split())
        finally:
            for job in jobs:
                job.terminate()
        over = wait_for(partial(pipeline.hangs, "over"), named)
        assert {row["reason"] for row in over.values()} == {""}
        reasons = {(way, rank): reason for way, (reason, ranks) in WAYS.items() for rank in ranks}
        assert {key: row["reason"] for key, row in pipeline.hangs("hung").items()} == reasons, "its end is no reason"
        pipeline.wait_clean("sleep")
    assert f"Rank 1 has not called AllReduce {STEPS + 1}" in pipeline.drumline(
        "report", "--job", "sleep", "-o", str(tmp_path / "report.html")
    )


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
@pytest.mark.timeout(900)
def test_a_hanging_rank_that_cupti_alone_records_is_named_with_its_line_and_no_healthy_one(
    clean_stack, environment_of, tmp_path
):
    pipeline = Watched(clean_stack, environment_of(clean_stack), tmp_path, "20")
    environment = pipeline.environment | {
        "PYTHONPATH": str(HANGING.parents[2]), "RAW_CUPTI_PLAIN": str(tmp_path), "WORLD_SIZE": "2",
    }  # fmt: skip
    jobs = []
    with pipeline.running():
        try:
            for job in ("healthy", "sleep"):
                (calls := tmp_path / job).mkdir()
                for rank in ("0", "1"):
                    ranked = {"DRUMLINE_JOB": job, "DRUMLINE_RUN": job, "RANK": rank, "LOCAL_RANK": rank}
                    command = [sys.executable, str(ON_GPU), job, str(calls)]
                    jobs.append(subprocess.Popen(command, env=environment | ranked))
            sleeping = f"run ({ON_GPU}:{marked_lines(ON_GPU)['sleep']})"
            assert wait_for(pipeline.lines, {"sleep"}) == {"sleep": sleeping}
            hung = wait_for(partial(pipeline.hangs, "hung"), {("sleep", 1)})
            assert all(job.poll() is None for job in jobs)
            assert pipeline.query("SELECT uniqExact(rank) AS n FROM progress WHERE job = 'healthy'") == [{"n": 2}]
        finally:
            for job in jobs:
                job.kill()
                job.wait()
        wait_for(partial(pipeline.hangs, "over"), {("sleep", 1)})
        for rows in (pipeline.hangs("standing"), hung, pipeline.hangs("hung")):
            assert {key: row["reason"] for key, row in rows.items()} == {("sleep", 1): "not_called"}
        pipeline.wait_clean("sleep")


@pytest.mark.long  # a worker, a sink and an agent
@pytest.mark.stack
@pytest.mark.timeout(900)
def test_a_rank_without_records_is_named_by_what_nccls_ras_counts(clean_stack, environment_of, tmp_path):
    library = tmp_path / "fake-nccl.so"
    subprocess.run([*COMPILER, "-shared", "-fPIC", "-o", library, PROGRAMS / "fake_nccl.c", *FAKE[:2]], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    pipeline = Watched(clean_stack, environment_of(clean_stack), tmp_path, "20")
    environment = pipeline.environment | {
        "WORLD": str(RANKS + 1), "NCCL_RAS_ADDR": f"localhost:{port}", "PYTHONPATH": str(HANGING.parents[2]),
    }  # fmt: skip
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--policy", "light", "--job", "ras", "--run", "ras"]
    command += ["--", "sh", "-c", LAUNCHER, "wait", sys.executable, str(WITH_RAS), str(library), port, str(RANKS)]
    with pipeline.running():
        job = subprocess.Popen(command, env=environment)
        try:
            [row] = wait_for(partial(pipeline.hangs, "standing"), {("ras", RANKS)}).values()
            assert (row["reason"], row["operation"], row["number"]) == ("not_called", "AllReduce", STEPS + 1)
            print(f"named by RAS after {row['took_s']:.1f} s")
            wait_for(partial(pipeline.hangs, "hung"), {("ras", RANKS)})
            shown = " ".join(pipeline.drumline("top", "--once", "--job", "ras").split())
            assert f"Rank {RANKS} has not called AllReduce {STEPS + 1}" in shown
        finally:
            job.terminate()
        wait_for(partial(pipeline.hangs, "over"), {("ras", RANKS)})
        pipeline.wait_clean("ras")
    page = tmp_path / "report.html"
    report = pipeline.drumline("report", "--job", "ras", "-o", str(page))
    assert f"Rank {RANKS} has not called AllReduce {STEPS + 1}" in report
    assert f"counts {STEPS} of {STEPS + 1} AllReduce of rank {RANKS}" in page.read_text()
