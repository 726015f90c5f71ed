"""A stage that fails on a tick, a defect: the others go on, and the program reports it until it works again."""

import asyncio
from types import SimpleNamespace

import pytest
from faust.types import TP

from drumline.infra.config.settings import Settings, StreamSettings
from drumline.infra.kafka.forget_tick import forget_value, job_to_forget
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import Health
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker, Wiring


@pytest.fixture
def worker(tmp_path, monkeypatch):
    settings = Settings(stream=StreamSettings(idle_s=1.0, data_dir=tmp_path))
    wirings = [Wiring(name, (Topic.KERNEL,), lambda store: None) for name in ("fails", "works")]
    created = StreamWorker(settings, wirings, WorkerTopics(1, {}), Codec(), Health())
    monkeypatch.setattr(created.lag, "records", lambda: 0)
    for runner in created.runners.values():
        monkeypatch.setattr(runner, "stage", lambda number: object())
    return created


def tick(worker, done, error, value=b""):
    """One tick, in which "fails" ends with `error`; None = well."""

    def stage(name):
        async def apply(number, work):
            if name == "fails" and error:
                raise error
            done.append(name)
            return [], []

        return apply

    for name, runner in worker.runners.items():
        runner.apply = stage(name)
    worker._ticks._gaps.clear()
    worker.app.consumer = None

    async def deliveries():
        message = SimpleNamespace(ack=lambda _: None, partition=0, value=value)
        return [delivery async for delivery in worker._on_ticks([message])]

    return asyncio.run(deliveries())


def failed():
    return metrics.STREAM_TICKS_FAILED.labels("fails")._value.get()


def test_a_stage_that_fails_on_a_tick_is_counted_and_reported_and_the_next_one_still_runs(worker):
    done, before = [], failed()
    assert len(tick(worker, done, KeyError("compute_overlapped_ns"))) == 1
    assert (done, failed() - before, worker.failure) == (["works"], 1, None)
    assert worker.readiness.health.ready() == {"tick": "fails on ticks, see the log: fails"}


def test_it_is_ready_again_when_it_works_again(worker):
    tick(worker, [], KeyError("x"))
    done = []
    tick(worker, done, None)
    assert done == ["fails", "works"]
    assert worker.readiness.health.ready() == {}


def test_it_is_ready_again_when_the_partition_has_gone_to_another_worker(worker):
    tick(worker, [], KeyError("x"))
    asyncio.run(worker._on_assigned(None, []))
    assert "tick" not in worker.readiness.health.ready()


@pytest.mark.parametrize("stuck", ["acknowledgements", "partition"])
def test_a_worker_whose_ticks_are_never_done_or_never_come_back_ends(worker, monkeypatch, stuck):
    crashed, ticks = [], worker._ticks

    async def crash(error):
        crashed.append(str(error))

    async def nothing(*_):
        return None

    held = {TP(Topic.TICK, 0), TP(Topic.TICK, 1)}
    worker.app.consumer = SimpleNamespace(assignment=lambda: held)
    for owner, name, value in (
        (worker.app, "crash", crash), (ticks, "send", nothing), (worker.lag, "prepare", nothing),
        (ticks, "watch_others", lambda held: None), (worker.lag, "positions", dict),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, value)
    worker._queues[Topic.TICK].unsettled = 64 * (stuck == "acknowledgements")

    async def run():
        for now in range(100, 400):
            ticks.answered = float(now)
            ticks.came.update([0] if stuck == "partition" else [0, 1])
            monkeypatch.setattr("drumline.streams.worker.faust_app.time.monotonic", lambda now=now: float(now))
            await worker._tick()
            if crashed:
                return now - 100

    assert asyncio.run(run()) == 61
    work = Topic.TICK if stuck == "acknowledgements" else "the ticks of partition 1"
    assert crashed == [str(worker.failure)]
    assert f"nothing of {work} was done" in crashed[0]


def test_a_tick_that_names_a_job_lets_each_stage_forget_it_however_many_ticks_have_queued_up(worker):
    stages = {name: SimpleNamespace(forgotten=[], on_tick=None) for name in worker.runners}
    for name, runner in worker.runners.items():
        stages[name].forget_job = stages[name].forgotten.append

        async def apply(number, work, stage=stages[name]):
            assert work(stage) == []
            return [], []

        runner.apply = apply
    worker.app.consumer = None

    async def deliveries():
        messages = [SimpleNamespace(ack=lambda _: None, partition=0, value=forget_value("my job")) for _ in range(2)]
        return [delivery async for delivery in worker._on_ticks(messages)]

    assert len(asyncio.run(deliveries())) == 2
    assert {name: stage.forgotten for name, stage in stages.items()} == dict.fromkeys(stages, ["my job"] * 2)
    assert [job_to_forget(value) for value in (b"", None, b"x", b"forget:\xff")] == ["", "", "", "\ufffd"]
