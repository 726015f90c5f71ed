"""Trees of processes as launchers make them, with a stand-in for torch: what loads drumline, its identity."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from support.torch_stub import TORCH
from support.wait_limit import WAIT_S

from drumline.producers.batching.process_record import process_record
from drumline.producers.identity import identity
from drumline.producers.launcher import LaunchOptions, environment

WORKER = """
import json, os, sys
if "gpu" in sys.argv:
    import torch
    torch.use_cuda()
loaded = any(name.startswith("drumline.producers") for name in sys.modules)
print(json.dumps({"pid": os.getpid(), "gpu": "gpu" in sys.argv, "loaded": loaded, "environment": dict(os.environ)}))
"""
SPAWN = """
import os, subprocess, sys
for variables in {workers!r}:
    for role in ("gpu", "loader"):
        subprocess.run([sys.executable, {worker!r}, role], env={{**os.environ, **variables}}, check=True)
"""
#: As vLLM starts its engine core: a front end that uses no GPU, one spawned child that does.
ENGINE = """
import multiprocessing, subprocess, sys
def core():
    subprocess.run([sys.executable, {worker!r}, "gpu"], check=True)
if __name__ == "__main__":
    subprocess.run([sys.executable, {worker!r}, "front"], check=True)
    child = multiprocessing.get_context({method!r}).Process(target=core)
    child.start()
    child.join()
    raise SystemExit(child.exitcode)
"""
LAUNCHERS = {
    "torchrun": lambda r: {"RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "rdzv"},
    "slurm": lambda r: {"SLURM_PROCID": r, "SLURM_LOCALID": r, "SLURM_NTASKS": 2, "SLURM_JOB_ID": "4711"},
    "mpi": lambda r: {
        "OMPI_COMM_WORLD_RANK": r, "OMPI_COMM_WORLD_LOCAL_RANK": r, "OMPI_COMM_WORLD_SIZE": 2,
    },
    "kubernetes": lambda r: {
        "RANK": r, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "KUBERNETES_SERVICE_HOST": "::1", "POD_NAME": f"train-{r}",
        "POD_NAMESPACE": "ml",
    },
}  # fmt: skip


@pytest.fixture
def launch(tmp_path):
    """`launch(script, **names)`: the output of each Python below it that prints, in order."""
    for name, text in {**TORCH, "sitecustomize.py": "", "worker.py": WORKER}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def run(script, **names):
        parent = tmp_path / "parent.py"
        parent.write_text(script.format(worker=str(tmp_path / "worker.py"), **names))
        command = [sys.executable, str(parent)]
        foreign = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_", "OMPI_", "PMI", "DRUMLINE_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        variables = environment(
            {**clean, "PYTHONPATH": str(tmp_path)}, command, LaunchOptions(job="train", policy="always")
        )
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT_S, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def identity_of(report):
    return identity(report["environment"], {"pid": report["pid"]}, None, 5)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_that_use_a_gpu_know_who_they_are_and_others_load_nothing(launch, launcher):
    workers = [{name: str(value) for name, value in LAUNCHERS[launcher](rank).items()} for rank in range(2)]
    reports = launch(SPAWN, workers=workers)
    assert (
        [report["loaded"] for report in reports] == [report["gpu"] for report in reports] == [True, False, True, False]
    )
    identities = [identity_of(report) for report in reports if report["gpu"]]
    assert [(report.rank, report.world_size, report.job) for report in identities] == [(0, 2, "train"), (1, 2, "train")]
    assert [report.local_rank for report in identities] == ([0, 0] if launcher == "kubernetes" else [0, 1])
    assert identities[0].run == identities[1].run
    assert identities[0].process_id != identities[1].process_id
    records = [
        process_record(report["environment"], process) for report, process in zip(reports[::2], identities, strict=True)
    ]
    pods = ["train-0", "train-1"] if launcher == "kubernetes" else ["", ""]
    assert [record["k8s_pod"] for record in records] == pods
    assert {record["slurm_job"] for record in records} == {"4711" if launcher == "slurm" else ""}


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_an_engine_core_is_instrumented_and_its_front_end_is_not(launch, method):
    front, core = launch(ENGINE, method=method)
    assert (front["loaded"], core["loaded"]) == (False, True)
    assert (identity_of(core).rank, identity_of(core).world_size, identity_of(core).job) == (0, 1, "train")
