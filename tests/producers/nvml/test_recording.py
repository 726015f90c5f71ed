"""Samples of a real H200, and of an H100 with links (machine.sh, driver 580.159.04): readings follow the load."""

import gzip
import json
from pathlib import Path
from statistics import mean

import pytest

from drumline.producers.nvml.batches import DeviceBatches, Part
from drumline.schemas.batch import decode, encode
from drumline.schemas.bounds.check import check
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

FOLDER = Path(__file__).parents[2] / "data" / "nvml"


@pytest.fixture(scope="module", params=["h200", "h100"])
def recording(request):
    return json.loads(gzip.decompress((FOLDER / f"{request.param}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def samples(recording):
    """load -> its samples, without the second in which it began."""
    result = {}
    for phase in recording["phases"]:
        inside = [r for r in recording["rows"] if phase["start_ns"] + 1.5e9 < r["time_ns"] < phase["end_ns"]]
        result.setdefault(phase["load"], []).extend(inside)
    return result


def means(rows, *names):
    return [mean(row[name] for row in rows) for name in names]


def test_tensor_cores_are_busy_in_a_matrix_product_and_only_then(samples):
    assert means(samples["matmul"], "tensor_active", "tensor_half_active")[0] > 50
    assert max(row["tensor_active"] for row in samples["idle"]) < 1
    assert means(samples["device-to-device"], "tensor_active") == [0]


@pytest.mark.parametrize(
    ("load", "busy"), [("matmul", "half"), ("fp64", "double"), ("int8", "integer")], ids=["bf16", "fp64", "int8"]
)
def test_activity_names_the_type_of_the_elements(samples, load, busy):
    activity = {kind: means(samples[load], f"tensor_{kind}_active")[0] for kind in ("half", "double", "integer")}
    assert activity.pop(busy) > 50
    assert max(activity.values()) < 1


def test_copies_show_as_bytes_of_the_bus_or_as_memory_bandwidth(recording, samples):
    rates = {phase["load"]: phase["calls_per_s"] * (1 << 30) for phase in recording["phases"] if "calls_per_s" in phase}
    [received] = means(samples["host-to-device"], "pcie_rx_kbps")
    [sent] = means(samples["device-to-host"], "pcie_tx_kbps")
    assert received * 1000 == pytest.approx(rates["host-to-device"], rel=0.15), "packets carry some bytes of their own"
    assert sent * 1000 == pytest.approx(rates["device-to-host"], rel=0.15)
    assert 50 < means(samples["device-to-device"], "dram_active")[0] <= 100


def test_a_violation_is_in_nanoseconds(recording, samples):
    first, last = samples["matmul"][0], samples["matmul"][-1]
    limited = last["violation_power_ns"] - first["violation_power_ns"]
    assert limited == pytest.approx(last["time_ns"] - first["time_ns"], rel=0.02), "at its power cap all the time"


def test_memory_of_the_job_is_that_of_its_process(samples):
    assert {row["job"] for row in samples["matmul"]} == {"matmul"}
    assert {row["job_memory"] for row in samples["idle"]} == {-1}
    assert means(samples["matmul"], "job_memory")[0] > 2 * (1 << 30)


def test_what_the_gpu_lacks_has_nvmls_reason_and_is_never_zero(recording):
    lacking = {"fan", "retired_pages_pending", "vgpu_license"}
    lacking |= set() if recording["model"].startswith("NVIDIA H100") else {"nvlink_links", "fabric_state"}
    assert lacking <= set(recording["absent"])
    assert {row[name] for row in recording["rows"] for name in lacking} == {-1}


def test_links_are_counted_and_bytes_to_another_gpu_are_sent_ones(recording):
    rows = recording["rows"]
    if "nvlink_links" in recording["absent"]:
        assert {row["nvlink_active"] for row in rows} == {-1}
        return
    assert {(row["nvlink_links"], row["nvlink_active"], row["fabric_state"]) for row in rows} == {(18, 18, 3)}
    assert {row["nvlink_crc_errors"] + row["nvlink_replays"] + row["nvlink_recoveries"] for row in rows} == {0}
    [peer] = [phase for phase in recording["phases"] if phase["load"] == "peer"]
    sent = {row["nvlink_tx_kbps"] for row in rows if row["time_ns"] > peer["start_ns"]}
    most = peer["calls_per_s"] * (1 << 30) / 1000
    assert 0.2 * most < max(sent) <= most, "a mean over the time since the counters were last read"
    assert max(row["nvlink_tx_kbps"] for row in rows if row["time_ns"] < peer["start_ns"]) == 0
    assert {row["nvlink_rx_kbps"] for row in rows} <= {-1, 0}


def test_every_sample_is_inside_the_contract_and_comes_back_as_it_was(recording):
    batches = DeviceBatches("agent-1", "h")
    for row in recording["rows"]:
        [(_, batch)] = batches.batches(
            Part("GPU-0", 0), {k: v for k, v in row.items() if k not in ("job", "gpu_index")}, {}
        )
        check(batch)
        again = decode(model(Topic.DEVICE), encode(model(Topic.DEVICE), batch))
        assert {name: values[0] for name, values in again.columns.items()} == {
            name: row.get(name, -1) for name in again.columns
        }, "-1: a counter that came later"
