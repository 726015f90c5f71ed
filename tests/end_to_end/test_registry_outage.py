"""The schema registry goes away: records of known schemas go on, others wait, and none becomes a dead letter."""

import subprocess
import threading

import pytest
from support.fakes.registry import FakeRegistry
from support.labs.sink import Pipeline, any_batch, process_id
from support.labs.stream_worker import PYTHON, Child, Reader
from support.labs.windows import copies, kernels
from support.metrics_scraper import get, of, samples, until

from drumline.infra.kafka.registry import codec
from drumline.infra.localstack.ephemeral import free_ports
from drumline.schemas.confluent import header
from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long]
COMMAND = [PYTHON, "-m", "drumline.cli.app", "stream"]
NOBODYS = header(9_999) + b"?"


@pytest.fixture
def registry():
    running_sink = FakeRegistry()
    yield running_sink
    running_sink.go()


@pytest.fixture
def pipeline(clean_stack, environment_of, registry):
    clean_stack.kafka.registry_url = registry.url
    created = Pipeline(clean_stack, environment_of(clean_stack))
    created.codec = codec(clean_stack)  # of who publishes
    yield created
    created.stop()
    clean_stack.kafka.registry_url = ""


def test_a_sink_waits_with_records_of_new_schemas_and_goes_on_with_all_others(pipeline, registry):
    def batch(topic, sequence):
        return any_batch(topic, 10, process_id(0), sequence)

    for topic in (Topic.KERNEL, Topic.STEP):
        pipeline.codec.registry.id_of(topic)
    pipeline.settings.sink.flush_s = 0.05
    stop = threading.Event()
    running_sink = pipeline.sink(lambda _: stop.is_set(), [Topic.KERNEL, Topic.STEP], codec(pipeline.settings))
    thread = threading.Thread(target=running_sink.run)
    thread.start()
    try:
        pipeline.publish(batch(Topic.KERNEL, 0))
        until(lambda: running_sink.counts.records == 1)
        registry.go()
        pipeline.publish(batch(Topic.STEP, 0), batch(Topic.STEP, 1))
        pipeline.raw(Topic.KERNEL, process_id(1), NOBODYS)
        until(lambda: running_sink.health.ready().get("registry", "").endswith("in 2 partitions"))
        pipeline.publish(*(batch(Topic.KERNEL, 1 + i) for i in range(5)))
        until(lambda: running_sink.counts.records == 6, 20)
        assert running_sink.counts.dead_letters == 0
        assert running_sink.kafka.lag() == 3
        registry.come()
        until(lambda: running_sink.counts.records == 9)
        assert running_sink.counts.dead_letters == 1, "the registry knows no such id"
    finally:
        stop.set()
        thread.join(30)
    pipeline.assert_exactly_once()


def test_a_worker_waits_with_records_of_new_schemas_and_buries_none(pipeline, registry, tmp_path):
    [port] = free_ports(1)
    environment = {
        **pipeline.environment,
        "DRUMLINE_METRICS_PORT": str(port),
        "DRUMLINE_STREAM__IDLE_S": "1",
    }
    worker = Child(environment, tmp_path, COMMAND, "one")
    try:
        until(lambda: get(port, "/readyz")[0] == 200)
        pipeline.publish(kernels([(1, 1, "k")], watermark=11), key="p")
        handled = of("drumline_stream_input_records_total", Topic.KERNEL)
        until(lambda: samples(port).get(handled) == 1)
        copied = copies([(1, 1, 1, 1, 1, 1)], watermark=11)
        pipeline.codec.registry.id_of(Topic.MEMCPY)
        registry.go()
        pipeline.publish(copied, key="p")
        pipeline.raw(Topic.KERNEL, "q", NOBODYS)
        until(lambda: "registry" in get(port, "/readyz")[1])
        windows = Reader(pipeline.settings, Topic.MEMCPY_BANDWIDTH)
        until(lambda: samples(port)[of("drumline_stream_retries_total", "registry")] >= 4)
        assert get(port, "/healthz")[0] == 200
        assert samples(port).get(of("drumline_stream_input_records_total", Topic.MEMCPY), 0) == 0
        registry.come()
        until(lambda: samples(port).get(of("drumline_stream_input_records_total", Topic.MEMCPY)) == 1)
        until(lambda: samples(port).get(handled) == 2)
        until(lambda: get(port, "/readyz")[0] == 200)
        until(lambda: _poll(windows))
        dead_letters = samples(port)
        assert dead_letters.get(of("drumline_stream_dead_letters_total", Topic.MEMCPY, "UnknownSchema"), 0) == 0
        assert dead_letters[of("drumline_stream_dead_letters_total", Topic.KERNEL, "UnknownSchema")] == 1
        assert worker.stop() == 0
    finally:
        worker.kill()
        windows.close()


def _poll(reader):
    message = reader.consumer.poll(0.2)
    return message is not None and message.error() is None


def test_a_worker_does_not_start_without_the_ids_of_what_it_writes(pipeline, registry):
    registry.go()
    try:
        ended = subprocess.run(COMMAND, env=pipeline.environment, capture_output=True, text=True, timeout=60)
    finally:
        registry.come()
    assert ended.returncode == 1
    assert "schema registry 127.0.0.1" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_registry_that_refuses_later_ends_worker_and_sink_and_buries_nothing(pipeline, registry, tmp_path):
    worker = Child({**pipeline.environment, "DRUMLINE_METRICS_PORT": "0"}, tmp_path, COMMAND, "one")
    sink = pipeline.start("--instance", "1")
    try:
        until(lambda: "worker starts" in worker.log.read_text())
        registry.status = 403
        pipeline.raw(Topic.KERNEL, "q", NOBODYS)
        errors = sink.communicate(timeout=60)[1].decode()
        assert (sink.returncode, worker.process.wait(60)) == (7, 1), errors
        pipeline.sinks.clear()  # it has ended as it should
    finally:
        worker.kill()
    for text in (errors, worker.log.read_text()):
        assert "rejects this client (HTTP 403); check DRUMLINE_KAFKA__REGISTRY_USER" in text
        assert "Traceback" not in text
    assert registry.calls.count(("GET", 9_999, None)) == 2
