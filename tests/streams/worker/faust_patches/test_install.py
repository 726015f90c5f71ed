"""A worker has all changes to Faust and aiokafka from its start on."""

import time

import pytest
from aiokafka.consumer.group_coordinator import GroupCoordinator

from drumline.infra.config.settings import Settings
from drumline.infra.telemetry import metrics
from drumline.schemas.codec import Codec
from drumline.streams.worker.checks.preflight import WorkerTopics
from drumline.streams.worker.faust_app import StreamWorker


@pytest.fixture
def worker(monkeypatch, tmp_path):
    monkeypatch.setattr(GroupCoordinator, "_do_commit_offsets", GroupCoordinator._do_commit_offsets)
    worker = StreamWorker(Settings(stream={"data_dir": tmp_path}), [], WorkerTopics(4, {}), Codec())
    yield worker
    worker.close()


def test_a_commit_of_faust_resets_the_age_of_the_last_one(worker):
    began = time.monotonic()
    worker.readiness.observe(began - 100)
    worker.readiness.observe(began)
    assert metrics.STREAM_COMMIT_AGE._value.get() == pytest.approx(100)
    worker.app.tables.on_commit({})
    worker.readiness.observe(time.monotonic())
    assert metrics.STREAM_COMMIT_AGE._value.get() < 100
