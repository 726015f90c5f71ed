"""Health checks of a host: readings of a fake NVML, numbers of a real H200, and loads that never run beside a job."""

import gzip
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.fakes.nvml import FIELDS, FakeNvml, NVMLError_GpuIsLost, NVMLError_LibraryNotFound, NVMLError_NotSupported

from drumline.producers.batching.sample_envelopes import SampleEnvelopes
from drumline.producers.health import host_health as health
from drumline.producers.health.host_health import check_batches, host_health
from drumline.producers.health.model_table import COPY_SHARE, MATMUL_SHARE, MODELS, limits_of, pcie_gbytes
from drumline.producers.nvml.pci_bus import gpus_on_bus
from drumline.schemas.batch import decode, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

RECORDING = Path(__file__).parents[2] / "data" / "nvml" / "h200.json.gz"
IDLE = {"ComputeRunningProcesses": [], "UtilizationRates": SimpleNamespace(gpu=0, memory=0),
        "MemoryInfo": SimpleNamespace(used=1 << 29, total=140 << 30)}  # fmt: skip
WELL = {"NVLINK_LINK_COUNT": 18, "REMAPPED_FAILURE": 0, "REMAPPED_PENDING": 0, "GET_GPU_RECOVERY_ACTION": 0}


@pytest.fixture(autouse=True)
def bus(monkeypatch):
    monkeypatch.setattr(health, "gpus_on_bus", lambda: 0)


def fake(gpus=1, fields=(), **answers):
    """GPUs that are well and idle, but for what is changed."""
    clocks = {"MaxClockInfo": 1_980, "CurrPcieLinkWidth": 16, "MaxPcieLinkWidth": 16, "MaxPcieLinkGeneration": 5,
              "Serial": "1650522003820"}  # fmt: skip
    nvml = FakeNvml(gpus, **{**IDLE, **clocks, **answers})
    for gpu in nvml.gpus:
        gpu["fields"] = {FIELDS[name]: value for name, value in {**WELL, **dict(fields)}.items()}
    return nvml


def results(nvml, wanted=1, python=""):
    """Name -> (state, text) of all checks."""
    return {item.name: (item.state, item.text) for item in host_health(lambda: nvml, wanted, python)}


def program(tmp_path, answer, code=0):
    """A Python that leaves a mark and prints this answer."""
    file = tmp_path / "python"
    marks = f"echo $$ > {tmp_path}/pid\ntouch {tmp_path}/ran"
    file.write_text(f"#!/bin/sh\n{marks}\nsleep 0.3\necho '{json.dumps(answer)}'\nexit {code}\n")
    file.chmod(0o755)
    return str(file)


def test_a_host_that_is_well_has_nothing_that_failed():
    answers = results(fake(8), 8)
    assert answers["GPU count"] == ("ok", "8 of 8 GPUs answer")
    assert answers["NVLink"] == ("ok", "18 of 18 links are up")
    assert {state for state, _ in answers.values()} == {"ok"}


@pytest.mark.parametrize(
    ("name", "faulty", "state", "text"),
    [
        ("NVLink", {"fields": {"NVLINK_LINK_COUNT": 12}}, "fail", "12 of 18 links are up"),
        ("NVLink", {"NvLinkState": 0}, "fail", "0 of 18 links are up"),
        ("memory", {"fields": {"REMAPPED_FAILURE": 1}}, "fail", "a row could not be remapped: have the GPU replaced"),
        ("memory", {"fields": {"REMAPPED_PENDING": 1}}, "warn", "0 uncorrected errors; a row waits for a reset: reset"),
        ("memory", {"TotalEccErrors": 3}, "warn", "3 uncorrected errors: reset the GPU"),
        ("recovery", {"fields": {"GET_GPU_RECOVERY_ACTION": 2}}, "fail", "NVML wants a reboot"),
        ("clocks", {"CurrentClocksThrottleReasons": 0x48}, "fail", "HW slowdown + HW thermal"),
        ("clocks", {"MaxClockInfo": 1_200}, "warn", "up to 1,200 MHz of 1,980"),
        ("PCIe", {"CurrPcieLinkWidth": 8}, "fail", "8 of 16 lanes"),
        ("NVLink", {"fields": {"NVLINK_LINK_COUNT": None}}, "skipped", "no link can be seen: Not Supported"),
        ("PCIe", {"CurrPcieLinkWidth": NVMLError_NotSupported()}, "skipped", "the driver does not report its lanes"),
    ],
)
def test_a_fault_is_found_and_what_cannot_be_read_is_skipped(name, faulty, state, text):
    answers = results(fake(**faulty))
    assert answers[name][0] == state
    assert text in answers[name][1]


def test_missing_and_lost_gpus_fail_and_the_rest_is_checked():
    assert results(fake(7), 8)["GPU count"] == ("fail", "7 of 8 GPUs answer")
    nvml = fake(2)
    nvml.lost = {1}
    answers = results(nvml, 2)
    assert answers["GPU count"][1] == "1 of 2 GPUs answer; NVML lists 1 more that do not answer"
    assert answers["NVLink"][0] == "ok"
    nvml.problem = NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    assert results(nvml)["NVML"][0] == "fail"


@pytest.mark.parametrize("call", ["Serial", "CurrPcieLinkWidth", "MaxPcieLinkGeneration"])
def test_a_gpu_that_is_lost_during_its_checks_fails_and_the_next_one_is_checked(tmp_path, call):
    nvml = fake(2)
    nvml.gpus[0][call] = NVMLError_GpuIsLost("GPU is lost")
    checks = list(host_health(lambda: nvml, 2, program(tmp_path, {"tflops": 652.4, "gbytes": 50.0})))
    first, second = ([c for c in checks if c.gpu_index == index] for index in (0, 1))
    assert (first[-1].name, first[-1].state, first[-1].gpu_uuid) == ("answers", "fail", "GPU-0")
    assert {c.state for c in second} == {"ok"}
    batches = [b for _, b in check_batches(checks, SampleEnvelopes("agent-1", "node-a"), 10**18)]
    assert [b.rows for b in batches] == [1, len(first), len(second)], "each check is one row"


def test_fewer_gpus_than_the_bus_has_is_a_warning_as_a_container_may_be_given_fewer(monkeypatch, tmp_path):
    for number, (vendor, kind) in enumerate((("0x10de", "0x030200"), ("0x10de", "0x068000"), ("0x8086", "0x030000"))):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        (tmp_path / str(number) / "class").write_text(f"{kind}\n")
    assert gpus_on_bus(tmp_path) == 1, "neither NVSwitch nor another vendor"
    monkeypatch.setattr(health, "gpus_on_bus", lambda: 8)
    assert results(fake(1), 0)["GPU count"] == ("warn", "1 of 8 GPUs answer")


@pytest.mark.parametrize(
    ("used", "text"),
    [
        ({"ComputeRunningProcesses": [SimpleNamespace(pid=7)]}, "1 processes compute on it"),
        ({"MPSComputeRunningProcesses": [SimpleNamespace(pid=7)]}, "1 processes compute on it"),
        ({"MemoryInfo": SimpleNamespace(used=40 << 30, total=140 << 30)}, "42.9 GB of its memory"),
        ({"UtilizationRates": SimpleNamespace(gpu=30, memory=1)}, "it is 30% busy"),
    ],
    ids=["process", "MPS", "memory", "utilisation"],
)
def test_no_load_runs_beside_a_job(tmp_path, used, text):
    answers = results(fake(**used), 1, program(tmp_path, {"tflops": 1, "gbytes": 1}))
    assert answers["load"][0] == "skipped"
    assert text in answers["load"][1]
    assert not (tmp_path / "ran").exists()


class Later(list):
    """Pids of processes that compute once the load runs; `with_load`: and its own."""

    def __init__(self, folder, pids, with_load):
        super().__init__([None])
        self.folder, self.pids, self.with_load = folder, pids, with_load

    def __iter__(self):
        if not (self.folder / "ran").exists():
            return iter(())
        load = [int((self.folder / "pid").read_text())] if self.with_load else []
        return iter([SimpleNamespace(pid=pid) for pid in [*load, *self.pids]])


@pytest.mark.parametrize(
    ("pids", "with_load", "text"),
    [
        ([os.getpid()], True, f"process {os.getpid()} began to compute on it: the load was ended"),
        ([1 << 30, (1 << 30) + 1], False, "2 processes compute on it: the load was ended"),
        ([], True, ""),
        ([1 << 30], False, ""),
    ],
    ids=["another", "another, of pids elsewhere", "its own", "its own, of a pid elsewhere"],
)
def test_a_load_ends_when_another_process_begins_to_compute(tmp_path, pids, with_load, text):
    nvml = fake(ComputeRunningProcesses=Later(tmp_path, pids, with_load))
    python = program(tmp_path, {"tflops": 652.4, "gbytes": 50.0})
    if text:
        Path(python).write_text(Path(python).read_text().replace("sleep 0.3", f"sleep 5\ntouch {tmp_path}/done"))
    answers = results(nvml, 1, python)
    assert answers.get("load") == (("skipped", text) if text else None)
    assert ("matmul" in answers) == (not text)
    assert not (tmp_path / "done").exists()


def test_no_load_runs_on_a_gpu_that_is_divided(tmp_path):
    nvml = fake()
    nvml.divide(0)
    assert "divided" in results(nvml, 1, program(tmp_path, {}))["load"][1]
    assert not (tmp_path / "ran").exists()


def test_a_load_is_compared_with_the_table_and_a_slow_gpu_fails(tmp_path):
    answers = results(fake(), 1, program(tmp_path, {"tflops": 652.4, "gbytes": 21.0}))
    assert answers["matmul"] == ("ok", "652 TFLOPS (bf16); at least 494: 50% of NVIDIA H200 data sheet")
    assert answers["host to device"] == ("fail", "21 GB/s; at least 38: 60% of PCIe 5.0 x16")
    assert answers["clocks under load"] == ("ok", "1,980 MHz")


def test_copies_are_compared_with_what_the_host_allows_and_not_at_all_where_that_is_unknown(tmp_path):
    answer = {"tflops": 652.4, "gbytes": 21.0}
    older = results(fake(MaxPcieLinkGeneration=4), 1, program(tmp_path, answer))
    assert older["host to device"] == ("ok", "21 GB/s; at least 19: 60% of PCIe 4.0 x16"), "an older host, not a fault"
    silent = results(fake(MaxPcieLinkGeneration=NVMLError_NotSupported()), 1, program(tmp_path, answer))
    assert silent["host to device"][0] == "skipped"


@pytest.mark.parametrize(
    ("model_name", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA A1000", None),
    ],
)
def test_a_model_has_its_own_figures_or_none(model_name, name):
    known = limits_of(model_name)
    assert (known and known.name) == name
    numbers = [f for f in (known.bf16_tflops, known.sm_mhz, known.links) if f] if known else []
    assert all(f.source and f.address for f in numbers)
    assert bool(numbers) == (name not in (None, "H100 NVL"))


def test_a_model_without_numbers_is_measured_and_compared_with_nothing(tmp_path):
    answers = results(fake(Name="NVIDIA H100 NVL"), 1, program(tmp_path, {"tflops": 1, "gbytes": 50.0}))
    assert answers["matmul"] == ("skipped", "1 TFLOPS (bf16); no figure for NVIDIA H100 NVL")
    assert answers["clocks"][0] == "skipped"


@pytest.mark.parametrize(
    ("answer", "code", "state", "text"),
    [
        ({"missing": "No module named 'torch'"}, 0, "skipped", "No module named"),
        ({}, 1, "fail", "exit code 1"),
        ({}, 127, "skipped", "not found"),
    ],
)
def test_without_pytorch_a_load_is_skipped_and_one_that_ends_badly_failed(tmp_path, answer, code, state, text):
    answers = results(fake(), 1, program(tmp_path, answer, code))
    assert answers["load"][0] == state
    assert text in answers["load"][1]


@pytest.mark.parametrize(
    ("version", "state", "text"),
    [("None", "skipped", "PyTorch is built without CUDA"), ("'12.8'", "fail", "CUDA does not work: Error 802: system")],
)
def test_cuda_that_does_not_work_fails_and_a_pytorch_without_it_is_skipped(tmp_path, version, state, text):
    """PyTorch's answers are made up: a host whose CUDA is broken cannot be had."""
    (tmp_path / "torch.py").write_text(
        f"from types import SimpleNamespace\nversion = SimpleNamespace(cuda={version})\n"
        "def init():\n    raise RuntimeError('Error 802:\\nsystem not yet initialized')\n"
        "cuda = SimpleNamespace(init=init, is_available=lambda: False)\n"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    answers = results(fake(), 1, str(python))
    assert answers["load"][0] == state
    assert text in answers["load"][1]


def test_the_recorded_h200_is_well_by_the_table():
    phases = {p["load"]: p.get("calls_per_s") for p in json.loads(gzip.decompress(RECORDING.read_bytes()))["phases"]}
    known = limits_of("NVIDIA H200")
    assert known is not None
    tflops, gbytes = phases["matmul"] * 2 * 8192**3 / 1e12, phases["host-to-device"] * (1 << 30) / 1e9
    assert known.bf16_tflops.value * MATMUL_SHARE < tflops < known.bf16_tflops.value
    assert pcie_gbytes(5, 16) * COPY_SHARE < gbytes < pcie_gbytes(5, 16)
    assert len({limit.name for limit in MODELS}) == len(MODELS)


def test_the_recorded_h100_was_well_when_it_was_checked():
    checks = json.loads(gzip.decompress(RECORDING.with_name("h100.json.gz").read_bytes()))["checks"]
    assert {item["state"] for item in checks} == {"ok"}
    texts = {item["name"]: item["text"] for item in checks}
    assert texts["NVLink"] == "18 of 18 links are up"
    assert texts["clocks"].startswith("up to 1,980 MHz of 1,980 (")


def test_batches_are_inside_the_contract_one_for_each_gpu_keyed_by_their_host():
    checks = list(host_health(lambda: fake(2), 2))
    batches = list(check_batches(checks, SampleEnvelopes("agent-1", "node-a"), 10**18))
    for _, batch in batches:
        check(batch)
        again = decode(model(Topic.CHECK), encode(model(Topic.CHECK), batch))
        assert again.envelope["states"] == ["ok"]
    assert [key for key, _ in batches] == ["node-a"] * 3
    assert [(b.envelope["gpu_uuid"], b.envelope["serial"], b.rows) for _, b in batches] == [
        ("", "", 1), ("GPU-0", "1650522003820", 5), ("GPU-1", "1650522003820", 5)
    ]  # fmt: skip
