"""Policy counts end to end: launches of a fake driver, decoder, agent, Kafka, sink, and the answer in SQL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.pipeline import Pipeline
from support.published_spool import is_published
from support.wait_limit import WAIT_S

from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.runtime.processes import ManagedProcess

TESTS = Path(__file__).parents[1]


@pytest.mark.long  # a sink and an agent
@pytest.mark.stack
def test_what_a_job_launched_is_the_answer_of_the_named_question(clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack), tmp_path)
    spool = tmp_path / "spool"
    pipeline.environment |= {"DRUMLINE_SPOOL__ROOT": str(spool), "PATH": os.environ["PATH"]}
    pipeline.drumline("topics", "apply")
    pipeline.drumline("migrate")
    del pipeline.programs["stream"]
    pipeline.programs["agent"] = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", pipeline.environment)
    command = [sys.executable, "-m", "drumline.cli.app", "run", "--policy", "counts", "--job", "counted", "--run", "r"]
    with pipeline.running():
        job = subprocess.run(
            [*command, "--", sys.executable, str(TESTS / "support/counted_job.py"), "end"],
            env=pipeline.environment | {"PYTHONPATH": str(TESTS)},
            stdout=subprocess.PIPE,
            text=True,
            timeout=WAIT_S,
            check=True,
        )
        launched = json.loads(job.stdout.splitlines()[-1])["launched"]
        assert wait_until(lambda: is_published(spool), WAIT_S), "rows are left"
        total = "SELECT sum(launches) AS n FROM launch_counts"
        assert wait_until(lambda: pipeline.query(total)[0]["n"] >= sum(of[0] for of in launched.values()), WAIT_S)
        assert wait_until(lambda: pipeline.audit("r")["clean"], WAIT_S)
    output = tmp_path / "answer.jsonl"
    pipeline.drumline("sql", "launch-counts", "--job", "counted", "--output", str(output))
    answer = [json.loads(line) for line in output.read_text().splitlines()]
    counts = {row["what"]: (row["launches"], row["in_graphs"], row["shapes"]) for row in answer}
    assert counts == {
        "add": (launched["_Z3addPf"][0], 0.8, 2),
        "HtoD": (launched["1"][0], 0.667, 1),
        "copy": (launched["_Z4copyPf"][0], 1.0, 1),
        "gemm": (launched["_Z4gemmPf"][0], 0.0, 1),
    }
    assert {row["most_blocks"] for row in answer if row["what"] == "gemm"} == {8}
    (stored,) = pipeline.query("SELECT sum(bytes) AS n, uniqExact(process_id) AS processes FROM launch_counts")
    assert (stored["n"], stored["processes"]) == (launched["1"][2], 1)
    assert pipeline.query("SELECT count() AS n FROM kernels")[0]["n"] == 0
