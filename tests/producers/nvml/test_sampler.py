"""NVML samples: readings, their jobs, and GPUs or drivers that are lost. NVML is a fake here."""

import queue

import pytest
from support.fakes.nvml import (
    FakeNvml,
    NVMLError_LibraryNotFound,
    NVMLError_NotSupported,
    NVMLError_ResetRequired,
    wait_until,
)
from support.job_process import process

from drumline.producers.nvml import sampler as agent_devices
from drumline.producers.nvml.batches import DeviceBatches, Part, jobs_on
from drumline.producers.nvml.query import NvmlLost, NvmlMissing
from drumline.producers.nvml.sampler import DeviceSampler, SamplerOptions
from drumline.producers.nvml.samples import Nvml
from drumline.producers.spool.writer import SpoolWriter
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

S = 10**9
COLUMNS = {column.name for column in model(Topic.DEVICE).columns}


def test_a_row_has_every_column_and_what_is_not_supported_is_unknown():
    nvml = Nvml(FakeNvml())
    row = nvml.sample(nvml.gpus[0], 7)
    assert set(row) == COLUMNS - {"xid", "job_memory", "job_util_sm"}
    assert (row["time_ns"], row["power_mw"], row["util_gpu"], row["memory_total"]) == (7, 650_000, 97, 140 << 30)
    assert (row["processes"], row["throttle_reasons"]) == (1, 4)
    assert (row["fan"], row["nvlink_rx_kbps"]) == (-1, -1)
    assert row["pcie_rx_kbps"] == 1_234


def test_everything_unsupported_is_a_row_of_unknowns():
    fake = FakeNvml()
    kept = ("UUID", "Name", "fields", "metrics")
    fake.gpus[0] = {k: v if k in kept else NVMLError_NotSupported() for k, v in fake.gpus[0].items()}
    nvml = Nvml(fake)
    row = nvml.sample(nvml.gpus[0], 7)
    assert {value for name, value in row.items() if name not in ("time_ns", "lost")} == {-1}


def test_nvlink_throughput_is_the_growth_of_its_counters():
    fake = FakeNvml()
    counters = fake.gpus[0]["fields"]
    counters.update({138: 5_000, 139: 0})
    nvml = Nvml(fake)
    [gpu] = nvml.gpus
    assert nvml.sample(gpu, 10 * S)["nvlink_tx_kbps"] == -1, "no growth is known yet"
    counters[138] += 2_000
    row = nvml.sample(gpu, 12 * S)
    assert (row["nvlink_tx_kbps"], row["nvlink_rx_kbps"]) == (1_024, 0), "2,000 KiB in 2 s"
    counters[138] = 5
    assert nvml.sample(gpu, 13 * S)["nvlink_tx_kbps"] == -1, "the counter restarted"


def test_a_lost_gpu_is_no_row_of_unknowns():
    fake = FakeNvml()
    nvml = Nvml(fake)
    fake.lost = {0}
    with pytest.raises(NvmlLost):
        nvml.sample(nvml.gpus[0], 7)


def test_a_missing_driver_differs_from_a_lost_one():
    fake = FakeNvml()
    fake.problem = NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    with pytest.raises(NvmlMissing):
        Nvml(fake)


def test_jobs_of_a_gpu():
    both = [process(1), process(0), process(0, job="other"), process(2, gpu="GPU-9"), process(job="")]
    jobs_of_gpu = jobs_on("GPU-0", set(), "h", both)
    assert {job: p["rank"] for job, p in jobs_of_gpu.items()} == {"train": 0, "other": 0}
    assert jobs_on("GPU-0", {103}, "h", [process(3, gpu="")])["train"]["rank"] == 3, "found by its pid"
    assert jobs_on("GPU-0", {103}, "another host", [process(3, gpu="")]) == {}
    newer = process(5, run="r2", start_ns=6)
    assert jobs_on("GPU-0", set(), "h", [process(0), newer])["train"]["run"] == "r2", "the newest run"


def test_a_shared_gpu_is_sent_once_for_each_job_and_one_without_under_its_uuid():
    feed = DeviceBatches("agent-1", "h")
    row = dict.fromkeys(COLUMNS, 3)
    jobs = jobs_on("GPU-0", set(), "h", [process(1), process(0, job="other")])
    for sequence in range(2):
        sent = dict(feed.batches(Part("GPU-0", 0), row, jobs))
        assert set(sent) == {"train", "other"}
        assert {b.envelope["sequence"] for b in sent.values()} == {sequence}
        assert sent["train"].envelope["rank"] == 1
        assert sent["train"].envelope["process_id"] == "agent-1"
    [(key, batch)] = feed.batches(Part("GPU-0", 0), row, {})
    assert (key, batch.envelope["job"], batch.envelope["rank"], batch.envelope["sequence"]) == ("GPU-0", "", -1, 0)
    [(_, batch)] = feed.batches(Part("GPU-1", 1), row, {"train": process()})
    assert batch.envelope["sequence"] == 2, "one sequence per key, whatever the GPU"


def test_a_reading_outside_its_bounds_is_unknown():
    row = {**dict.fromkeys(COLUMNS, 3), "memory_used": (1 << 64) - 1, "temperature": -40}
    [(_, batch)] = DeviceBatches("agent-1", "h").batches(Part("GPU-0", 0), row, {})
    assert [batch.columns[name].tolist() for name in ("memory_used", "temperature", "fan")] == [[-1], [-1], [3]]


def test_samples_come_at_their_period_for_every_gpu(sampling):
    rows = sampling(FakeNvml(gpus=2), processes=[process(0)])
    wait_until(lambda: len(rows()) >= 6)
    assert {key for key, _ in rows()} == {"train", "GPU-1"}
    assert {int(batch.columns["xid"][0]) for _, batch in rows()} == {0}


def test_an_xid_is_a_sample_at_once(sampling):
    fake = FakeNvml(gpus=2)
    rows = sampling(fake, period_s=3600)
    wait_until(lambda: len(rows()) == 2)
    fake.events.put((1, 79))
    fake.events.put((1, 63))
    wait_until(lambda: len(rows()) == 4)
    assert [(key, int(batch.columns["xid"][0])) for key, batch in rows()[2:]] == [("GPU-1", 79), ("GPU-1", 63)]


def test_the_xid_of_a_gpu_that_fell_off_the_bus_is_sent(sampling):
    fake = FakeNvml(gpus=2)
    rows = sampling(fake, period_s=3600, processes=[process(0)])
    wait_until(lambda: len(rows()) == 2)
    fake.lost = {0}
    fake.events.put((0, 79))
    wait_until(lambda: len(rows()) == 3)
    key, batch = rows()[2]
    assert (key, int(batch.columns["xid"][0]), int(batch.columns["power_mw"][0])) == ("train", 79, -1)
    fake.events.put((1, 31))
    fake.events.put((0, 154))
    wait_until(lambda: len(rows()) == 5)
    assert int(rows()[-1][1].columns["xid"][0]) == 154, "known to be lost, and reported all the same"


def test_without_events_it_samples_all_the_same(sampling):
    fake = FakeNvml()
    fake.gpus[0]["no events"] = True
    rows = sampling(fake)
    wait_until(lambda: len(rows()) >= 3)


def test_a_lost_gpu_does_not_hold_up_the_others_and_is_sampled_when_it_is_back(sampling, monkeypatch):
    monkeypatch.setattr(agent_devices, "REOPEN_S", 0.05)
    fake = FakeNvml(gpus=2)
    rows = sampling(fake)

    def of(gpu, since=0):
        return [key for key, _ in rows()[since:]].count(gpu)

    wait_until(lambda: of("GPU-0") >= 2)
    fake.lost = {0}
    before = len(rows())
    wait_until(lambda: of("GPU-1", before) >= 10)
    assert of("GPU-0", before) <= 2, "the sample under way, and one that states the loss"
    fake.lost = set()
    wait_until(lambda: of("GPU-0", before) >= 5)
    assert fake.opened == 1, "closed as often as it was opened before"


def test_a_driver_that_goes_away_is_opened_again(sampling, monkeypatch):
    monkeypatch.setattr(agent_devices, "REOPEN_S", 0.01)
    fake = FakeNvml()
    rows = sampling(fake)
    wait_until(lambda: len(rows()) >= 2)
    fake.events, fake.problem = None, NVMLError_ResetRequired()
    wait_until(lambda: fake.opened == 0)
    before = len(rows())
    fake.events, fake.problem = queue.SimpleQueue(), None
    wait_until(lambda: len(rows()) > before + 2)


def test_without_nvml_the_thread_ends_and_nothing_else_happens(tmp_path):
    fake = FakeNvml()
    fake.problem = NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    spool = SpoolWriter(tmp_path, {"process_id": "agent-1", "sequence": 0})
    sampler = DeviceSampler(spool, DeviceBatches("agent-1", "h"), list, SamplerOptions(0.01, load=lambda: fake))
    sampler.start()
    sampler.join(10)
    assert not sampler.is_alive()
    assert not spool.rows
    sampler.stop()
