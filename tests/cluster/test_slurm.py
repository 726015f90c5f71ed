"""A real Slurm: four tasks on two nodes are recorded by the shipped prolog, also after a requeue, as one run each."""

import json
import os
import sys
import time
from pathlib import Path

import pytest
from support.labs.sink import Pipeline
from support.published_spool import is_published
from support.slurm_cluster import PACKAGES, missing_programs, slurm_cluster

from drumline.infra.runtime.processes import ManagedProcess

pytestmark = [pytest.mark.stack, pytest.mark.cluster, pytest.mark.timeout(900)]
TESTS = Path(__file__).parents[1]
#: How often each task plays its buffer, half a second each; the requeue ends the first attempt.
ENDLESS, REPETITIONS = 5_000, 30
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --job-name=llama --requeue --output={folder}/job.txt --open-mode=append
echo "batch $PYTHONPATH"
export REPETITIONS={endless}
if [ "$SLURM_RESTART_COUNT" ]; then REPETITIONS={repetitions}; fi
srun --nodes=2 --ntasks=4 bash -c 'echo "step $PYTHONPATH"; exec {job}'
"""


def until(condition, explanation, timeout_s=240.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explanation()
        time.sleep(0.5)


@pytest.fixture
def missing():
    if names := missing_programs():
        pytest.skip(f"no {', '.join(names)}: apt-get install {PACKAGES}")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons run as root here")


def test_four_tasks_on_two_nodes_and_a_requeue_have_one_run_each(missing, clean_stack, environment_of, tmp_path):
    pipeline = Pipeline(clean_stack, environment_of(clean_stack))
    spool, folder = tmp_path / "drumline", tmp_path / "slurm"
    folder.mkdir()
    environment = {
        **pipeline.environment, "DRUMLINE_SPOOL__ROOT": str(spool), "DRUMLINE_AGENT__GPU_S": "0",
        "DRUMLINE_METRICS_PORT": "0",
    }  # fmt: skip
    agent = ManagedProcess("agent", ["agent"], tmp_path / "agent.log", environment)
    script = folder / "job.sh"
    job = f"{sys.executable} {TESTS}/support/collector_job.py paced $REPETITIONS"
    script.write_text(SCRIPT.format(folder=folder, job=job, endless=ENDLESS, repetitions=REPETITIONS))
    spooled = {
        "DRUMLINE_SPOOL__ROOT": str(spool),
        "DRUMLINE_COLLECT__POLICY": "always",  # the fake CUPTI plays from the start
    }
    runs = (
        "SELECT run, uniqExact(rank) AS ranks, uniqExact(host) AS hosts FROM {db}.processes "
        "WHERE job = 'llama' GROUP BY run ORDER BY run"
    )

    def states():
        """Return what each part did, for a failed assertion."""
        stored = pipeline.query(runs), pipeline.query("SELECT topic, count() AS n FROM {db}.ledger GROUP BY topic")
        spools = {path.name: sorted(os.listdir(path)) for path in spool.iterdir() if path.is_dir()}
        texts = [path.read_text() for path in (folder / "job.txt", tmp_path / "agent.log") if path.exists()]
        return "\n".join([slurm.logs(), *map(str, stored), str(spools), *(text[-3000:] for text in texts)])

    agent.start()
    try:
        with slurm_cluster(folder, spooled) as slurm:
            slurm.environment["PYTHONPATH"] = str(TESTS)
            pipeline.start("--instance", "1", flush_s="0.05", bulk_flush_s="0.05")
            job = slurm.command("sbatch", "--parsable", str(script))
            until(lambda: [row["ranks"] for row in pipeline.query(runs)] == [4], states)
            slurm.command("scontrol", "requeue", job)
            until(lambda: slurm.state(job).get("Restarts") == "1", slurm.logs)
            slurm.wait_state(job, "COMPLETED")
        until(lambda: is_published(spool), lambda: os.listdir(spool))
    finally:
        agent.stop()
    pipeline.published |= dict.fromkeys(("gpu.kernel.v1", "gpu.memcpy.v1", "gpu.step.v1", "gpu.process.v1"), 0)
    pipeline.wait_drained(120)
    pipeline.stop()
    report = pipeline.audit()
    assert report.clean, json.dumps(report.as_json(), indent=1, default=str)
    lines = (folder / "job.txt").read_text().splitlines()
    paths = [line.split()[1].split(":") for line in lines if line.startswith(("batch ", "step "))]
    assert len(paths) == 2 * 5
    assert all(path.count(path[0]) == 1 and path[-1] == str(TESTS) for path in paths), "the prolog repeats nothing"
    assert {path[0].rsplit("/", 2)[-2] for path in paths} == {"collector"}
    stored = pipeline.query(runs)
    assert [(row["run"], row["ranks"]) for row in stored] == [(job, 4)]
    named = pipeline.query("SELECT DISTINCT job, slurm_job FROM {db}.processes WHERE rank >= 0")
    assert [(row["job"], row["slurm_job"]) for row in named] == [("llama", job)]
    newest = f"SELECT argMax(process_id, start) FROM {{db}}.processes WHERE run = '{job}' AND rank >= 0 GROUP BY rank"
    kernels = pipeline.query(f"SELECT count() AS n FROM {{db}}.kernels WHERE process_id IN ({newest})")[0]["n"]
    whole = [json.loads(line) for line in lines if line.startswith('{"delivered"')]
    assert len(whole) == 4, "those of the first attempt were ended"
    assert kernels == sum(line["delivered"]["10"] for line in whole)
    report = pipeline.audit(run=job)
    assert report.clean, "both attempts are of one run"
    audited = {account.topic: account.rows_stored for account in report.topics}
    assert audited["gpu.kernel.v1"] == pipeline.query("SELECT count() AS n FROM {db}.kernels")[0]["n"] > kernels
    assert {row["hosts"] for row in stored} == {2}
