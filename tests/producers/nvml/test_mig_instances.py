"""MIG instances: a row each, the job in each, and what NVML does not tell of them. NVML is a fake here."""

from types import SimpleNamespace

import pytest
from support.fakes.nvml import FakeNvml, NVMLError_NotSupported, wait_until
from support.job_process import process

from drumline.producers.nvml.batches import jobs_on
from drumline.producers.nvml.samples import Nvml

S = 10**9


@pytest.fixture
def divided():
    fake = FakeNvml(gpus=2)
    fake.divide(0)
    return fake


def values(batch, *names):
    return tuple(float(batch.columns[name][0]) for name in names)


def newest(rows, key):
    return [batch for of, batch in rows() if of == key][-1]


def test_each_instance_has_memory_processes_and_activity_for_itself_and_no_utilisation(divided):
    nvml = Nvml(divided)
    gpu = nvml.gpus[0]
    whole = nvml.sample(gpu, 1 * S)
    assert [instance.part for instance in gpu.instances][1].instance == 4
    first = [instance.sample(whole, 1 * S) for instance in gpu.instances]
    assert [row["memory_used"] for row in first] == [1 << 30, 2 << 30]
    rows = [instance.sample(nvml.sample(gpu, 2 * S), 2 * S) for instance in gpu.instances]
    assert [row["sm_active"] for row in rows] == [10.0, 20.0]
    assert [row["processes"] for row in rows] == [1, 1]
    assert {row.get("util_gpu", -1) for row in rows} == {-1}
    assert {row.get("power_mw", -1) for row in rows} == {-1}, "counted once, in the row of the whole GPU"
    assert whole["util_gpu"] == -1
    assert nvml.gpus[1].instances == ()
    nvml.close()
    assert divided.gpm_samples == 0


@pytest.mark.parametrize("known", ["MIG-0-1", "GPU-0", ""], ids=["instance", "parent", "nothing yet"])
def test_a_process_gets_the_samples_of_its_instance_whatever_it_knows_of_it(sampling, divided, known):
    """Its recorder knows the instance's UUID, its parent's, or none: then its pid decides."""
    rows = sampling(divided, processes=[process(1, gpu=known)])
    wait_until(lambda: [key for key, _ in rows()].count("train") >= 2)
    batch = newest(rows, "train")
    assert (batch.envelope["gpu_uuid"], batch.envelope["parent_uuid"]) == ("MIG-0-1", "GPU-0")
    assert (batch.envelope["gpu_index"], batch.envelope["gpu_instance"]) == (0, 4)
    assert values(batch, "job_memory", "memory_used", "temperature", "lost") == (1 << 30, 2 << 30, 61, 0)
    whole = newest(rows, "GPU-0")
    assert (whole.envelope["parent_uuid"], whole.envelope["gpu_instance"], whole.envelope["job"]) == ("", -1, "")
    assert newest(rows, "MIG-0-0").envelope["job"] == ""


def test_an_instance_is_no_other_gpu_with_the_same_end():
    assert not jobs_on("MIG-0-1", {101}, "h", [process(1, gpu="GPU-9")], "GPU-0")


def test_instances_that_are_made_and_removed_while_it_runs_are_followed(divided):
    instances = divided.gpus[0].pop("instances")
    divided.gpus[0] |= {"MigMode": [0, 0], "instances": {}}
    nvml = Nvml(divided)
    gpu = nvml.gpus[0]
    nvml.sample(gpu, 1 * S)
    assert gpu.instances == ()
    divided.gpus[0] |= {"MigMode": [1, 1], "instances": instances}
    nvml.sample(gpu, 12 * S)
    kept = gpu.instances[1]
    for instance in gpu.instances:
        instance.sample(nvml.sample(gpu, 13 * S), 13 * S)
    del instances[0]
    nvml.sample(gpu, 24 * S)
    assert gpu.instances == (kept,)
    assert divided.gpm_samples == 3, "the two of the parent and one of the instance that stayed"


def test_an_xid_of_one_instance_is_not_the_other_ones(sampling, divided):
    rows = sampling(divided, period_s=3600, processes=[process(0, job="a"), process(1, job="b")])
    wait_until(lambda: len(rows()) == 4)
    divided.events.put((0, 31, 4))
    wait_until(lambda: len(rows()) == 7)
    assert {key: values(batch, "xid") for key, batch in rows()[4:]} == {"GPU-0": (31,), "a": (0,), "b": (31,)}
    divided.events.put((0, 79))
    wait_until(lambda: len(rows()) == 10)
    assert {values(batch, "xid") for _, batch in rows()[7:]} == {(79,)}, "of the whole GPU"


def test_time_slicing_and_mps_have_memory_and_sm_time_by_job(sampling):
    """Two jobs, one of them by MPS, whose clients are a list of their own in NVML."""
    used = [SimpleNamespace(pid=100, timeStamp=1, smUtil=30), SimpleNamespace(pid=101, timeStamp=1, smUtil=55)]
    fake = FakeNvml(
        ComputeRunningProcesses=[SimpleNamespace(pid=100, usedGpuMemory=5 << 30)],
        MPSComputeRunningProcesses=[SimpleNamespace(pid=101, usedGpuMemory=7 << 30)],
        ProcessUtilization=used,
    )
    rows = sampling(fake, processes=[process(0, job="sliced"), process(1, job="mps", gpu="")])
    wait_until(lambda: {key for key, _ in rows()} == {"sliced", "mps"})
    assert values(newest(rows, "sliced"), "job_memory", "job_util_sm", "processes") == (5 << 30, 30, 2)
    assert values(newest(rows, "mps"), "job_memory", "job_util_sm") == (7 << 30, 55)


def test_an_instance_of_which_nvml_refuses_everything_is_a_row_of_unknowns(sampling, divided):
    for handle in divided.gpus[0]["instances"].values():
        handle["MemoryInfo"] = handle["ComputeRunningProcesses"] = NVMLError_NotSupported("Not Supported")
        handle["MPSComputeRunningProcesses"] = NVMLError_NotSupported("Not Supported")
        handle["metrics"] = {}
    rows = sampling(divided, processes=[process(1, gpu="MIG-0-1")])
    wait_until(lambda: len(rows()) >= 8)
    assert values(newest(rows, "train"), "memory_used", "sm_active", "processes", "job_memory") == (-1, -1, -1, -1)
