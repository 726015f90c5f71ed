"""Readings of a GPU beyond utilisation: every default counter of dcgm-exporter, GPM, and what a GPU lacks."""

import pytest
from support.fakes.nvml import FIELDS, FakeNvml

from drumline.producers.nvml.gpm import METRICS as ACTIVITIES
from drumline.producers.nvml.query import NvmlLost
from drumline.producers.nvml.samples import Nvml

S = 10**9
#: NVIDIA/dcgm-exporter, etc/default-counters.csv at commit 00d6d344ea4a39112b211b9ff5af3d97e0bb51c2 -> our column.
DCGM_DEFAULTS = {
    "SM_CLOCK": "sm_clock",
    "MEM_CLOCK": "memory_clock",
    "MEMORY_TEMP": "memory_temperature",
    "GPU_TEMP": "temperature",
    "POWER_USAGE": "power_mw",
    "TOTAL_ENERGY_CONSUMPTION": "energy_mj",
    "PCIE_TX_THROUGHPUT": "pcie_tx_kbps",
    "PCIE_RX_THROUGHPUT": "pcie_rx_kbps",
    "PCIE_REPLAY_COUNTER": "pcie_replays",
    "GPU_UTIL": "util_gpu",
    "MEM_COPY_UTIL": "util_memory",
    "ENC_UTIL": "util_encoder",
    "DEC_UTIL": "util_decoder",
    "XID_ERRORS": "xid",
    "FB_FREE": "memory_total",  # less memory_used
    "FB_USED": "memory_used",
    "NVLINK_BANDWIDTH_TOTAL": "nvlink_tx_kbps",
    "VGPU_LICENSE_STATUS": "vgpu_license",
    "UNCORRECTABLE_REMAPPED_ROWS": "remapped_uncorrectable",
    "CORRECTABLE_REMAPPED_ROWS": "remapped_correctable",
    "ROW_REMAP_FAILURE": "remap_failure",
}


@pytest.fixture
def fake():
    return FakeNvml()


def test_every_default_counter_of_dcgm_exporter_is_read_or_has_nvmls_reason(fake):
    fake.gpus[0]["fields"] = dict.fromkeys(FIELDS.values(), 0)
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    nvml.sample(gpu, 1 * S)
    row = nvml.sample(gpu, 2 * S) | {"xid": 0}
    assert len(DCGM_DEFAULTS) == 21
    without = {column for column in DCGM_DEFAULTS.values() if row[column] == -1}
    assert without == {"vgpu_license"}
    assert gpu.query.absent["vgpu_license"] == "this is no vGPU"


def test_what_a_gpu_lacks_is_unknown_with_a_reason_and_never_zero(fake):
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    row = nvml.sample(gpu, 1 * S)
    lacking = ("memory_temperature", "pcie_replays", "remap_failure", "violation_power_ns", "retired_pages_pending")
    assert {row[name] for name in lacking} == {-1}
    assert {gpu.query.absent[name] for name in lacking} == {"Not Supported"}
    assert {row[name] for name in ACTIVITIES} == {-1}
    assert "Hopper" in gpu.query.absent["GPM"]


def test_the_power_limit_is_read_seldom(fake):
    fake.gpus[0]["EnforcedPowerLimit"] = 700_000
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    assert nvml.sample(gpu, 1 * S)["power_limit_mw"] == 700_000
    fake.gpus[0]["EnforcedPowerLimit"] = 500_000
    assert nvml.sample(gpu, 2 * S)["power_limit_mw"] == 700_000
    assert nvml.sample(gpu, 12 * S)["power_limit_mw"] == 500_000


def test_what_is_not_supported_is_not_asked_again(fake):
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    nvml.sample(gpu, 1 * S)
    fake.gpus[0]["FanSpeed"] = 30
    fake.gpus[0]["fields"][FIELDS["MEMORY_TEMP"]] = 50
    row = nvml.sample(gpu, 2 * S)
    assert (row["fan"], row["memory_temperature"]) == (-1, -1)


def test_seldom_readings_are_repeated_until_they_are_due_or_an_xid_asks(fake):
    fields = fake.gpus[0]["fields"]
    fields[FIELDS["REMAPPED_UNC"]] = 0
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    assert nvml.sample(gpu, 1 * S)["remapped_uncorrectable"] == 0
    fields[FIELDS["REMAPPED_UNC"]] = 1
    assert nvml.sample(gpu, 2 * S)["remapped_uncorrectable"] == 0
    assert nvml.sample(gpu, 3 * S, complete=True)["remapped_uncorrectable"] == 1
    fields[FIELDS["REMAPPED_UNC"]] = 2
    assert nvml.sample(gpu, 13 * S)["remapped_uncorrectable"] == 2


@pytest.mark.parametrize("has_sums", [True, False], ids=["sums", "links"])
def test_errors_of_links_are_their_sums_whether_the_gpu_adds_them_or_not(fake, has_sums):
    fields = fake.gpus[0]["fields"]
    fields[FIELDS["NVLINK_LINK_COUNT"]] = 3
    if has_sums:
        fields[FIELDS["NVLINK_REPLAY_ERROR_COUNT_TOTAL"]] = 6
    else:
        fields.update({(FIELDS["NVLINK_ERROR_DL_REPLAY"], link): link + 1 for link in range(3)})
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    row = nvml.sample(gpu, S)
    assert (row["nvlink_links"], row["nvlink_active"], row["nvlink_replays"], row["nvlink_crc_errors"]) == (3, 3, 6, -1)
    assert "nvlink_replays" not in gpu.query.absent
    assert gpu.query.absent["nvlink_crc_errors"] == "Not Supported"


def test_activity_is_that_since_the_last_sample_and_absent_just_after_one(fake):
    fake.gpus[0]["metrics"] = {"SM_UTIL": 99.5, "ANY_TENSOR_UTIL": 71.25, "PCIE_RX_PER_SEC": 1.0}
    fake.gpus[0]["metrics"]["NVLINK_TOTAL_RX_PER_SEC"] = 0.0
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    assert nvml.sample(gpu, 1 * S)["tensor_active"] == -1, "no interval yet"
    row = nvml.sample(gpu, 2 * S)
    assert (row["sm_active"], row["tensor_active"], row["pcie_rx_kbps"]) == (99.5, 71.25, 1049)
    assert row["nvlink_rx_kbps"] == -1, "a GPU without links"
    assert (row["fp64_active"], gpu.query.absent["fp64_active"]) == (-1, "Not Supported")
    assert nvml.sample(gpu, 2 * S + 1000)["tensor_active"] == -1, "an XID just after a sample"
    for second in range(3, 9):
        nvml.sample(gpu, second * S)
    assert fake.gpm_samples == 2, "two samples take turns"
    nvml.close()
    assert fake.gpm_samples == 0


def test_a_gpu_lost_between_two_readings_is_lost(fake):
    fake.gpus[0]["fields"] = dict.fromkeys(FIELDS.values(), 0)
    nvml = Nvml(fake)
    values = fake.nvmlDeviceGetFieldValues

    def lost(handle, fields):
        answers = values(handle, fields)
        answers[0].nvmlReturn = 15
        return answers

    fake.nvmlDeviceGetFieldValues = lost
    with pytest.raises(NvmlLost, match="GPU is lost"):
        nvml.sample(nvml.gpus[0], S)
