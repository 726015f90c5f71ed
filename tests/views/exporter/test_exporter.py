"""The exporter itself on a real broker: what it serves over HTTP, and that a kill loses nothing that matters."""

import os
import signal
import subprocess
import sys
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.labs.stream_worker import apply_topics, publish
from support.metrics_scraper import free_port, get, of, samples, until
from support.otlp_receiver import receiving
from support.verdict_worlds import SECOND, hang, late_job, moved, process, simulated

from drumline.infra.kafka.topic_admin import TopicsAdmin
from drumline.schemas.epochs import write_epoch
from drumline.schemas.keys import record_key

pytestmark = pytest.mark.stack


@pytest.fixture
def start(clean_stack, environment_of, tmp_path):
    """Start an exporter: start(*options) -> (process, port)."""
    apply_topics(clean_stack)
    started = []

    def run(*options):
        port = free_port()
        environment = environment_of(clean_stack) | {"DRUMLINE_METRICS_PORT": str(port)}
        command = [sys.executable, "-m", "drumline.cli.app", "exporter", *options]
        log = (tmp_path / f"{port}.log").open("wb")
        started.append(subprocess.Popen(command, env=environment, stderr=log))
        until(lambda: get(port, "/readyz")[0] == 200)
        return started[-1], port

    yield run
    for child in started:
        child.kill()
        child.wait()


def put(settings, *batches):
    publish(settings, batches, record_key)


def states(port):
    """Job, run, state and cause of each run that has series."""
    families = text_string_to_metric_families(get(port, "/metrics")[1])
    labelled = [
        sample.labels for family in families for sample in family.samples if sample.name == "drumline_job_state"
    ]
    return sorted((of["job"], of["run"], of["state"], of["cause"]) for of in labelled)


def test_verdicts_standstills_and_pods_are_served_and_come_back_after_a_kill(clean_stack, start):
    now = time.time_ns()
    windows = [moved(batch, now, job="late", run="1") for batch in simulated()[-2:]]
    put(clean_stack, *windows, process(3, "pod-3", job="late", run="1"))
    put(clean_stack, hang("hung", (5,), time_ns=now - 1_800 * SECOND, job="stuck", run="1"))
    put(clean_stack, late_job(now - 3_600 * SECOND, job="ended", run="1"))
    child, port = start()
    expected = [("late", "1", "critical", "host_stall"), ("stuck", "1", "hung", "not_called")]
    until(lambda: states(port) == expected)
    seen = samples(port)
    assert seen[of("drumline_rank_severity", "late", "1", "3", "host0", "GPU-3", "ml", "pod-3")] == 3
    assert seen[of("drumline_gpu_info", "GPU-3", "late", "1", "3", "host0", "ml", "pod-3")] == 1
    assert seen[of("drumline_job_awaited_ranks", "stuck", "1")] == 1
    assert seen["drumline_exporter_ready"] == 1
    assert get(port, "/nodes/host0")[1].startswith("problem\njob late, run 1: rank 3 on host host0")
    assert get(port, "/nodes/host1")[1].startswith("ok\n")

    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child, port = start()
    until(lambda: states(port) == expected)
    put(clean_stack, hang("moving", time_ns=time.time_ns(), job="stuck", run="1", revision=1))
    until(lambda: states(port) == expected[:1])
    child.terminate()
    assert child.wait(60) == 0


def test_a_record_that_cannot_be_read_and_one_of_a_fenced_worker_change_nothing(clean_stack, start):
    from confluent_kafka import Producer

    from drumline.infra.kafka.config import producer_config
    from drumline.schemas.codec import Codec

    _, port = start()
    producer, now = Producer(producer_config(clean_stack, "test")), time.time_ns()
    epoch = now // 1_000_000
    late = moved(simulated()[-1], now, job="j", run="r")
    healthy = moved(simulated(faults=())[-1], now + SECOND, job="j", run="r")
    for number, value in ((epoch, Codec().encode(late)), (epoch - 1, Codec().encode(healthy)), (epoch, b"poison")):
        header = write_epoch(number, "changelog-0")
        producer.produce("gpu.straggler.v1", key=b"j", value=value, headers=[header])
    assert producer.flush(30) == 0
    topic = "gpu.straggler.v1"
    until(lambda: samples(port).get(of("drumline_exporter_ignored_records_total", topic, "unreadable")) == 1)
    assert samples(port)[of("drumline_exporter_ignored_records_total", topic, "fenced")] == 1
    until(lambda: states(port) == [("j", "r", "critical", "host_stall")])


def test_metrics_and_events_reach_a_collector(clean_stack, start):
    with receiving() as receiver:
        start("--otlp", receiver.address, "--otlp-every", "1")
        put(clean_stack, moved(simulated()[-1], time.time_ns(), job="j", run="r"))
        [record] = until(receiver.logs)
        assert "job j, run r: rank 3" in record.body.string_value
        until(lambda: any(named["state"] == "critical" for named, _ in receiver.points().get("drumline_job_state", [])))


def test_without_topics_it_ends_and_names_the_command_that_creates_them(clean_stack, environment_of):
    assert not TopicsAdmin(clean_stack).existing(["gpu.hang.v1"])
    command = [sys.executable, "-m", "drumline.cli.app", "exporter"]
    done = subprocess.run(command, env=environment_of(clean_stack), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "create them with `drumline topics apply`" in done.stderr
