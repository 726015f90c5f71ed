"""Host time of the job by what it is spent on, from PyTorch's functions as stand-ins, and real garbage."""

import gc
import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest

from drumline.producers.collector import host_time, marks
from drumline.producers.ipc.events import MARK_BEGIN, MARK_END
from drumline.producers.ipc.host_sums import COLUMNS, from_text, to_text

MS = 1_000_000


class PlayedClock:
    """A clock that goes on only by its sleep."""

    now_ns = 0

    def sleep(self, seconds):
        self.now_ns += round(seconds * 1e9)


clock = PlayedClock()


@pytest.fixture
def torch(monkeypatch):
    """Install the hooks into stand-ins of PyTorch's modules, with functions that take 20 ms of a played clock."""
    monkeypatch.setattr(clock, "now_ns", 0)
    monkeypatch.setattr(host_time, "perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(host_time, "_totals", [0, 0, 0, 0])
    monkeypatch.setattr(host_time, "_inside", [False] * 4)
    monkeypatch.setattr(host_time, "_pending", [])
    monkeypatch.setattr(host_time, "_measured", 0)
    monkeypatch.setattr(host_time, "_with_waiting", False)

    def sleeping(*arguments, **named):
        clock.sleep(0.02)
        return arguments, named

    class Loader:
        def __iter__(self):
            return self

        def __next__(self):
            return sleeping("batch")

    tensor = type("Tensor", (), {"item": sleeping})
    fakes = {
        "torch": {"save": sleeping, "Tensor": tensor},
        "torch.cuda": {"synchronize": sleeping},
        "torch.serialization": {"save": sleeping},
        "torch.utils.data.dataloader": {"_BaseDataLoaderIter": Loader},
    }
    for name, values in fakes.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    yield lambda name: sys.modules[name]
    gc.callbacks[:] = [call for call in gc.callbacks if call is not host_time._collecting]


def spent(before=()):
    """Milliseconds by column since `before`."""
    text, _ = host_time.since(before or (0, 0, 0, 0))
    return dict(zip(COLUMNS, (ns // MS for ns in from_text(text)), strict=True))


def test_loading_saving_and_collecting_are_summed_apart(torch, monkeypatch):
    gc.collect()
    host_time.install()
    loader = torch("torch.utils.data.dataloader")._BaseDataLoaderIter()
    assert next(loader) == (("batch",), {})
    assert torch("torch").save(1, to=2) == ((1,), {"to": 2})
    assert torch("torch.serialization").save is torch("torch").save
    sums = spent()
    assert 20 <= sums["load_ns"] < 40
    assert 20 <= sums["checkpoint_ns"] < 40
    assert (sums["gc_ns"], sums["sync_ns"]) == (0, -1)
    monkeypatch.setattr(host_time, "perf_counter_ns", time.perf_counter_ns)
    rubbish = [[] for _ in range(200_000)]
    for part in rubbish:
        part.append(part)
    del rubbish
    del part
    gc.collect()
    assert spent()["gc_ns"] >= 5


def test_what_is_imported_later_is_measured_from_then_on(torch, monkeypatch):
    host_time.install()
    saver, package = ModuleType(host_time._SAVER), ModuleType("torch.distributed.checkpoint")
    saver.save = package.save = saver.async_save = lambda state: clock.sleep(0.02)
    monkeypatch.setitem(sys.modules, host_time._SAVER, saver)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    host_time.since(())
    package.save({})
    saver.save({})
    assert 40 <= spent()["checkpoint_ns"] < 80


@pytest.mark.parametrize("flatten", ["_flatten", "_flatten_as_ptr"])
def test_saving_with_safetensors_counts_under_any_name(torch, monkeypatch, flatten):
    host_time.install()
    module = ModuleType("safetensors.torch")
    exec(f"def save_file(tensors): serialize_file({flatten}(tensors))", vars(module))  # as it calls them
    module.serialize_file = lambda tensors: clock.sleep(0.02)
    vars(module)[flatten] = lambda tensors: clock.sleep(0.04)
    safe_save_file = module.save_file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    host_time.since(())
    safe_save_file({})
    assert 60 <= spent()["checkpoint_ns"] < 80


def test_a_checkpoint_that_saves_with_torch_counts_once(torch):
    host_time.install()
    outer = host_time.timed(lambda: torch("torch").save(1), host_time.CHECKPOINT)
    outer()
    assert 20 <= spent()["checkpoint_ns"] < 40


def test_the_hooks_cost_a_launch_bound_step_less_than_a_fifth_of_a_percent(torch, monkeypatch):
    """CPU of a step of 28 ms (recorded) with a batch, a look at the loss, twenty collections of garbage and a mark."""
    monkeypatch.setattr(host_time, "perf_counter_ns", time.perf_counter_ns)
    host_time.install()
    load, wait = (host_time.timed(lambda: None, part) for part in (host_time.LOAD, host_time.SYNC))

    def spend(steps=500):
        began, before = time.thread_time_ns(), (0, 0, 0)
        for _ in range(steps):
            load()
            wait()
            for _ in range(20):
                host_time._collecting("start", {})
                host_time._collecting("stop", {})
            _, before = host_time.since(before)
        return (time.thread_time_ns() - began) / steps

    cost_ns = min(spend() for _ in range(9))
    print(f"hooks: {cost_ns / 1e3:.1f} us a step")
    assert cost_ns < 0.002 * 28 * MS


def test_other_threads_do_not_count(torch):
    host_time.install()
    thread = threading.Thread(target=torch("torch").save)
    thread.start()
    thread.join()
    assert spent()["checkpoint_ns"] == 0


def test_an_error_passes_and_its_time_counts(torch):
    def failing():
        clock.sleep(0.02)
        raise StopIteration("the end")

    host_time.install()
    for _ in range(2):
        with pytest.raises(StopIteration, match="the end"):
            host_time.timed(failing, host_time.LOAD)()
    assert 40 <= spent()["load_ns"] < 80


@pytest.mark.parametrize("first", ["install", "install_waiting"])
def test_waiting_for_the_gpu_is_measured_where_cupti_is_attached(torch, first):
    calls = {"install": host_time.install, "install_waiting": host_time.install_waiting}
    calls.pop(first)
    getattr(host_time, first)()
    next(iter(calls.values()))()
    torch("torch.cuda").synchronize()
    torch("torch").Tensor().item()
    assert 40 <= spent()["sync_ns"] < 80


def test_a_step_carries_the_time_of_the_one_before_to_ring_and_decoder(torch, monkeypatch):
    taken = SimpleNamespace(ring=[], decoder=[])
    monkeypatch.setattr(marks, "ring", lambda *mark: taken.ring.append(mark))
    monkeypatch.setattr(marks, "decoder", lambda *mark: taken.decoder.append(mark))
    monkeypatch.setattr(marks, "at_mark", None)
    monkeypatch.setattr(marks, "_api_numbers_steps", False)
    api, optimizer = marks.StepSeries("step", marks.FROM_API), marks.StepSeries("optimizer step", 0)
    host_time.install()
    for number in range(3):
        api.begin(number)
        if number == 1:
            torch("torch").save(1)
        optimizer.begin(number)
    saved = [from_text(name)[2] // MS for _, _, name, source in taken.ring if source == marks.FROM_API]
    assert saved[:2] == [-1, 0]
    assert 20 <= saved[2] < 40
    ends = [name for flags, _, name in taken.decoder if flags == MARK_END]
    assert [20 <= from_text(name)[2] // MS < 40 for name in ends] == [False, True, True, False]
    assert [name for flags, _, name in taken.decoder if flags == MARK_BEGIN][:2] == ["step 0", "optimizer step 0"]


def test_a_text_of_sums_fits_into_a_mark_and_no_text_fails():
    hour = 3_600 * 10**9
    longest = to_text([hour, hour, hour, hour])
    assert len(longest) <= 32
    assert from_text(longest)[0] == ((1 << 28) - 1) * 10_000
    assert from_text(to_text([123_456_789, 0, 10_000])) == (123_450_000, 0, 10_000, -1)
    for text in ("", "step 7", "-1,2", "1,2,x", "ffffffffffff", ",,,", "1,2,3,4,5"):
        assert len(from_text(text)) == 4
        assert all(-1 <= ns < hour for ns in from_text(text))
