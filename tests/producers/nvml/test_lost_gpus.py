"""A GPU that disappears has samples that state it, with the job that it took along. NVML is a fake here."""

import queue

import pytest
import structlog
from support.fakes.nvml import FakeNvml, NVMLError_DriverNotLoaded, NVMLError_Uninitialized, wait_until
from support.job_process import process

from drumline.producers.nvml import lost_gpus as lost
from drumline.producers.nvml import sampler
from drumline.producers.nvml.batches import Part
from drumline.producers.nvml.lost_gpus import LostGpus
from drumline.producers.nvml.samples import Nvml

S = 10**9


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(sampler, "REOPEN_S", 0.02)


def states(rows, *keys):
    """(index, lost) of the rows so far, or of those with these keys."""
    return [(b.envelope["gpu_index"], int(b.columns["lost"][0])) for key, b in rows() if not keys or key in keys]


def test_a_lost_gpu_is_a_row_with_the_job_that_it_took_along_and_none_follow_until_it_is_due(sampling):
    fake, alive = FakeNvml(gpus=2), [process(0), process(1, gpu="GPU-1")]
    rows = sampling(fake, processes=alive)
    wait_until(lambda: len(rows()) >= 4)
    fake.lost = {1}
    alive.clear()  # the job died of it before the driver noticed
    wait_until(lambda: (1, 1) in states(rows, "train"))
    before = len(rows())
    wait_until(lambda: len(rows()) > before + 20)
    assert states(rows).count((1, 1)) == 1, "the next one is due in 10 s"
    [row] = [b for key, b in rows() if (key, int(b.columns["lost"][0])) == ("train", 1)]
    assert {int(row.columns[name][0]) for name in ("util_gpu", "power_mw", "temperature")} == {-1}
    assert (row.envelope["gpu_uuid"], row.envelope["run"], row.envelope["rank"]) == ("GPU-1", "r1", 1)


def test_a_gpu_missing_after_a_driver_restart_is_lost_and_the_rest_goes_on(sampling):
    fake = FakeNvml(gpus=3)
    rows = sampling(fake)
    wait_until(lambda: len(rows()) >= 3)
    fake.events, missing = None, fake.gpus.pop(1)
    wait_until(lambda: (1, 1) in states(rows, "GPU-1"))
    fake.events = queue.SimpleQueue()
    wait_until(lambda: states(rows)[-2:] in ([(0, 0), (1, 0)], [(1, 0), (0, 0)]))
    assert (2, 1) not in states(rows, "GPU-2"), "it has another index now, and is not lost"
    fake.gpus.append(missing)
    fake.events = None
    wait_until(lambda: states(rows, "GPU-1")[-1] == (2, 0))


def test_an_unloaded_driver_is_waited_for_and_its_gpus_are_lost_only_if_it_stays_away(sampling, monkeypatch):
    fake = FakeNvml()
    rows = sampling(fake)
    wait_until(lambda: len(rows()) >= 2)
    fake.events, fake.problem = None, NVMLError_DriverNotLoaded("Driver Not Loaded")
    wait_until(lambda: fake.opened == 0)
    fake.events, fake.problem = queue.SimpleQueue(), None
    before = len(rows())
    wait_until(lambda: len(rows()) > before + 2)
    assert {state for _, state in states(rows)} == {0}, "a restart is no loss"
    monkeypatch.setattr(lost, "DRIVER_NS", 0)
    fake.events, fake.problem = None, NVMLError_DriverNotLoaded("Driver Not Loaded")
    wait_until(lambda: states(rows)[-1] == (0, 1))


def test_a_driver_that_is_loaded_after_the_agent_began_is_waited_for_and_reported_once(sampling, monkeypatch):
    monkeypatch.setattr(sampler, "gpus_on_bus", lambda: 8)
    fake, tries = FakeNvml(), []
    fake.problem = NVMLError_DriverNotLoaded("Driver Not Loaded")
    opened = fake.nvmlInit
    fake.nvmlInit = lambda: (tries.append(1), opened())
    with structlog.testing.capture_logs() as logs:
        rows = sampling(fake)
        wait_until(lambda: len(tries) > 2)
        fake.problem = None
        wait_until(lambda: len(rows()) >= 2)
    assert [(line["log_level"], line["gpus_on_bus"]) for line in logs if "gpus_on_bus" in line] == [("warning", 8)]


def test_a_gpu_that_never_answered_is_lost_without_a_uuid_and_gets_it_later(sampling):
    fake = FakeNvml(gpus=2)
    fake.lost = {1}
    rows = sampling(fake)
    wait_until(lambda: (1, 1) in states(rows, "h"))
    fake.lost = set()
    wait_until(lambda: (1, 0) in states(rows, "GPU-1"))
    assert (1, 1) not in states(rows, "GPU-1")


def test_a_lost_gpu_that_is_divided_takes_the_jobs_of_its_instances_along(sampling):
    fake = FakeNvml()
    fake.divide(0)
    rows = sampling(fake, processes=[process(0, job="a", gpu="MIG-0-0"), process(1, job="b", gpu="MIG-0-1")])
    wait_until(lambda: len(rows()) >= 3)
    fake.lost = {0}
    wait_until(lambda: (0, 1) in states(rows, "a") and (0, 1) in states(rows, "b"))


def test_its_job_is_named_for_a_minute_and_then_only_the_gpu():
    gpus, part = LostGpus(), Part("GPU-0", 0)
    gpus.answered(part, {"train": {"run": "r1"}})
    gpus.silent(part, 100 * S)
    assert gpus.due(100 * S) == [(part, {"train": {"run": "r1"}})]
    assert gpus.due(109 * S) == []
    assert gpus.due(110 * S) == [(part, {"train": {"run": "r1"}})]
    assert gpus.due(160 * S) == [(part, {})]
    gpus.answered(part, {})
    assert gpus.due(200 * S) == []


def test_a_counter_that_falls_when_the_driver_is_loaded_again_gives_no_rate():
    fake = FakeNvml()
    fake.gpus[0]["fields"].update({138: 5_000, 139: 5_000})
    for count in (5_000, 7, 9):
        nvml = Nvml(fake)  # as after every restart
        fake.gpus[0]["fields"].update({138: count, 139: count})
        [gpu] = nvml.gpus
        rates = [nvml.sample(gpu, second * S)["nvlink_rx_kbps"] for second in (1, 2)]
        fake.gpus[0]["fields"].update({139: 1})
        rates.append(nvml.sample(gpu, 3 * S)["nvlink_rx_kbps"])
        assert rates == [-1, 0, -1]
        nvml.close()


def test_nothing_is_raised_when_the_driver_dies_between_two_calls():
    fake = FakeNvml()
    nvml = Nvml(fake)
    fake.events = None
    with pytest.raises(RuntimeError, match="Uninitialized"):
        nvml.wait_xid(0.001)
    fake.nvmlShutdown = lambda: (_ for _ in ()).throw(NVMLError_Uninitialized("Uninitialized"))
    nvml.close()
