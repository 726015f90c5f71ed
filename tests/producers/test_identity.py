"""Identity from the environments that launchers make."""

import ast
import re
from pathlib import Path

import pytest

from drumline.producers.batching.process_record import process_record
from drumline.producers.identity import MAX_NAME, MAX_RANK, OF_PROCESS, host_identity, identity, run_id
from drumline.producers.spool.location import spool_bytes
from drumline.schemas.batch import Batch, encode
from drumline.schemas.bounds.limits import bound
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

PRODUCERS = Path(__file__).parents[2] / "producers"
#: Other variables that a ring has: what is recorded, and of which GPUs.
OF_RING = {"DRUMLINE_RINGS__GRAPHS", "DRUMLINE_COLLECT__POLICY", "CUDA_VISIBLE_DEVICES"}
ATTACHED = {
    "pid": 77,
    "started_ns": 5,
    "gpus": [{"uuid": f"GPU-{i}", "model": "NVIDIA H200"} for i in range(4)],
    "versions": {"torch": "2.11"},
}
TORCHRUN = {"RANK": "9", "LOCAL_RANK": "1", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "none"}
SLURM = {"SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "4711"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "16"}


@pytest.mark.parametrize("environment", [TORCHRUN, SLURM, OPENMPI, {**SLURM, **TORCHRUN, "SLURM_PROCID": "1"}])
def test_ranks_of_launchers(environment):
    process = identity(environment, ATTACHED, None, 100)
    assert (process.rank, process.local_rank, process.world_size) == (9, 1, 16)
    assert (process.gpu_uuid, process.gpu_model, process.pid, process.start_ns) == ("GPU-1", "NVIDIA H200", 77, 5)


def test_a_process_alone_is_rank_0_of_1():
    process = identity({}, {"pid": 1}, None, 100)
    assert (process.rank, process.local_rank, process.world_size, process.gpu_uuid, process.job) == (0, 0, 1, "", "job")


def test_the_gpu_it_was_seen_to_use_counts_more_than_its_local_rank():
    assert identity(TORCHRUN, ATTACHED, 3, 100).gpu_uuid == "GPU-3"
    assert identity({**TORCHRUN, "LOCAL_RANK": "7"}, ATTACHED, None, 100).gpu_uuid == "GPU-0"


def test_the_rank_of_torch_distributed_counts_where_no_variable_is_about_this_very_process():
    spawned = {**ATTACHED, "rank": 3, "world_size": 4}
    one_task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1"}
    for environment in ({}, one_task):
        process = identity(environment, spawned, 2, 100)
        assert (process.rank, process.local_rank, process.world_size) == (3, 2, 4)
    process = identity(TORCHRUN, spawned, 2, 100)
    assert (process.rank, process.local_rank, process.world_size) == (9, 1, 16)


def test_a_run_has_one_name_on_all_nodes_and_after_a_restart():
    minted = {"DRUMLINE_MINTED_RUN": "here-only"}
    assert run_id(minted) == "here-only"
    assert run_id({**minted, **TORCHRUN}) == "here-only"
    assert run_id({**minted, **SLURM}) == "4711"
    assert run_id({**SLURM, "DRUMLINE_RUN": "mine"}) == "mine"
    assert run_id({**minted, **OPENMPI, "PMIX_NAMESPACE": "prterun-node1-7@1"}) == "prterun-node1-7@1"
    for restarts in ({"SLURM_RESTART_COUNT": "2"}, {"TORCHELASTIC_RESTART_COUNT": "1"}):
        assert run_id({**minted, **SLURM, **restarts}) == "4711", "nodes may count restarts differently"
        assert run_id({**minted, "TORCHELASTIC_RUN_ID": "abc", **restarts}) == "abc"


def test_a_decoder_that_was_restarted_is_another_source_of_batches():
    first, second = (identity({**TORCHRUN, "DRUMLINE_RUN": "mine"}, ATTACHED, None, at) for at in (100, 200))
    assert first.run == second.run
    assert first.process_id != second.process_id


def test_labels_pod_and_slurm_job_are_in_the_process_record():
    environment = {
        **SLURM,
        "DRUMLINE_LABELS": "team=vision, cluster=a",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "POD_NAMESPACE": "train",
        "HOSTNAME": "llama-0",
        "CONTAINER_NAME": "main",
    }
    record = process_record(environment, identity(environment, ATTACHED, None, 100))
    assert record["labels"] == {"team": "vision", "cluster": "a"}
    assert (record["k8s_namespace"], record["k8s_pod"], record["slurm_job"]) == ("train", "llama-0", "4711")
    assert record["k8s_container"] == "main"


def test_a_host_has_the_name_that_is_configured(monkeypatch):
    """In a pod the machine's name is the pod's; trainer and agent state the node's."""
    assert identity({**TORCHRUN, "DRUMLINE_HOST": "node-7"}, ATTACHED, None, 100).host == "node-7"
    assert host_identity("agent", 100, {}, "node-7").host == "node-7"
    monkeypatch.setattr("socket.gethostname", lambda: "pod-abc")
    assert identity(TORCHRUN, ATTACHED, None, 100).host == host_identity("agent", 100, {}).host == "pod-abc"


def test_nonsense_in_the_environment_is_as_good_as_nothing_and_can_be_published():
    environment = {
        "RANK": "²", "OMPI_COMM_WORLD_RANK": "--5", "PMI_RANK": "99999999999", "SLURM_PROCID": "2", "WORLD_SIZE": "x",
        "DRUMLINE_JOB": "M\udcfcller", "DRUMLINE_RUN": "\udcff", "DRUMLINE_LABELS": "who=\udcfc",
        "KUBERNETES_SERVICE_HOST": "::1", "POD_NAME": "\udcff", "POD_NAMESPACE": "ml",
    }  # fmt: skip
    process = identity(environment, ATTACHED, None, 100)
    assert (process.rank, process.world_size, process.job, process.run) == (2, 1, "M?ller", "?")
    record = process_record(environment, process)
    assert record["labels"] == {"who": "?"}
    encode(model(Topic.PROCESS), Batch(Topic.PROCESS, {**record, "rows": 1}))


def test_names_and_ranks_stay_within_the_bounds_of_records():
    environment = {"DRUMLINE_JOB": "j" * 2_000, "RANK": str(MAX_RANK + 1), "SLURM_PROCID": "2"}
    process = identity(environment, ATTACHED, None, 100)
    assert process.job == "j" * 1_023 + "…"
    assert process.rank == 2
    assert (bound(Topic.PROCESS, "rank").high, bound(Topic.PROCESS, "job").length) == (MAX_RANK, MAX_NAME)


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "much"])
def test_a_bound_that_is_none_is_refused_by_name(text):
    with pytest.raises(ValueError, match="DRUMLINE_SPOOL__MAX_MB"):
        spool_bytes({"DRUMLINE_SPOOL__MAX_MB": text})


def test_a_ring_copies_the_variables_that_identify_a_process():
    source = (PRODUCERS / "nccl_profiler/ring_writer.c").read_text()
    [names] = re.findall(r"names\[\] = \{(.*?)NULL\}", source, re.DOTALL)
    assert set(re.findall(r'"(\w+)"', names)) == OF_PROCESS | OF_RING


def test_no_other_module_spells_such_a_variable():
    spelled = {
        (str(path.relative_to(PRODUCERS)), node.value)
        for path in PRODUCERS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in OF_PROCESS
    }
    assert {path for path, _ in spelled} == {"identity.py"}
