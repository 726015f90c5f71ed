"""/healthz, /readyz and /metrics: what they answer, and that a port in use stops nothing."""

import json
import socket
import threading
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from drumline.infra.config.settings import LocalSettings, Settings
from drumline.infra.telemetry import metrics
from drumline.infra.telemetry.health import BUSY_S, PORTS, CachedProbe, Health, HealthServer, serve_health
from drumline.streams.worker.telemetry import EXPIRED_S, QUIET_S, Readiness


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def get(server, path, **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def health():
    return Health(stalled_s=10, clock=Clock())


@pytest.fixture
def server(health):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = serve_health("sink", Settings(metrics_port=port), health)
    yield served
    served.close()


def test_a_program_without_a_report_is_alive_but_not_ready(server):
    assert get(server, "/healthz") == (200, '{"alive": true, "reasons": {}}\n')
    code, body = get(server, "/readyz")
    assert (code, json.loads(body)) == (503, {"ready": False, "reasons": {"start": "not started yet"}})


def test_readiness_is_a_metric_and_the_address_is_a_setting(health):
    served = serve_health("sink", Settings(metrics_port=19999, metrics_address="127.0.0.2"), health)
    try:
        with urllib.request.urlopen("http://127.0.0.2:19999/metrics", timeout=10) as answer:
            assert "drumline_sink_ready 0.0" in answer.read().decode()
        health.set_reason("partitions", "")
        with urllib.request.urlopen("http://127.0.0.2:19999/metrics", timeout=10) as answer:
            assert "drumline_sink_ready 1.0" in answer.read().decode()
    finally:
        served.close()


def test_readiness_has_a_reason_until_it_is_removed(server, health):
    health.set_reason("partitions", "no partitions assigned")
    health.set_reason("retry", "")
    code, body = get(server, "/readyz")
    assert (code, json.loads(body)["reasons"]) == (503, {"partitions": "no partitions assigned"})
    health.set_reason("partitions", "")
    assert get(server, "/readyz") == (200, '{"ready": true, "reasons": {}}\n')
    health.probe("clickhouse", lambda: "ClickHouse does not answer")
    assert json.loads(get(server, "/readyz")[1])["reasons"] == {"clickhouse": "ClickHouse does not answer"}


def test_a_main_loop_that_stands_still_is_neither_alive_nor_ready(server, health):
    health.set_reason("partitions", "")
    health._clock.now = 11.0
    assert get(server, "/healthz")[0] == get(server, "/readyz")[0] == 503
    health.heartbeat()
    assert get(server, "/healthz")[0] == get(server, "/readyz")[0] == 200


def test_a_main_loop_that_waits_for_an_answer_is_alive_but_not_ready():
    health = Health(clock=Clock())
    health.set_reason("partitions", "")
    health._clock.now = BUSY_S + 1
    assert not health.alive()
    assert health.ready() == {"main_loop": "has waited for an answer for 16 s"}
    health.heartbeat()
    assert not health.ready()


def test_metrics_come_as_text_or_as_openmetrics(server):
    code, text = get(server, "/metrics")
    assert code == 200
    assert "# TYPE drumline_sink_lag_records gauge" in text
    assert "process_resident_memory_bytes" in text
    assert "drumline_stream" not in text
    assert get(server, "/metrics", Accept="application/openmetrics-text; version=1.0.0")[1].endswith("# EOF\n")


def test_anything_else_is_not_found(server):
    assert get(server, "/")[0] == 404


def test_only_this_machine_is_answered(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_in_use_is_a_warning_that_names_the_setting(server, health):
    with capture_logs() as logs:
        assert serve_health("stream", Settings(metrics_port=server.server_port), health) is None
    assert [(line["log_level"], line["setting"]) for line in logs] == [
        ("warning", "DRUMLINE_METRICS_PORT, DRUMLINE_METRICS_ADDRESS")
    ]
    assert str(server.server_port) in logs[0]["address"]


def test_port_0_is_no_server(health, monkeypatch):
    monkeypatch.setattr(HealthServer, "__init__", lambda *_: pytest.fail("it listens"))
    assert serve_health("stream", Settings(metrics_port=0), health) is None


def test_the_programs_of_one_host_have_ports_of_their_own():
    local = LocalSettings()
    ports = [*PORTS.values(), local.kafka_port, local.kafka_port + 1]
    ports += [local.clickhouse_http_port, local.clickhouse_tcp_port]
    assert len(set(ports)) == len(ports)


def test_a_probe_is_asked_at_most_once_in_a_while():
    clock, calls = Clock(), []

    def probe():
        calls.append(clock.now)
        return f"no {len(calls)}"

    answer = CachedProbe(probe, "slow", for_s=5, timeout_s=10, clock=clock)
    assert [answer(), answer()] == ["no 1", "no 1"]
    clock.now = 5.0
    assert answer() == "no 2"


def test_who_asks_for_readiness_does_not_wait_for_a_server_that_hangs():
    clock, hangs, calls = Clock(), threading.Event(), []

    def probe():
        calls.append(1)
        if len(calls) > 1:
            hangs.wait(10)
        return ""

    answer = CachedProbe(probe, "ClickHouse does not answer", for_s=5, timeout_s=0.05, slow_s=3, clock=clock)
    while answer():  # the first answer may take longer than the timeout
        pass
    clock.now = 5.0
    assert answer() == "", "as it was: the question is young"
    clock.now = 8.0
    assert answer() == "ClickHouse does not answer"
    assert len(calls) == 2
    hangs.set()
    while answer():
        pass


def test_a_worker_is_ready_with_partitions_state_and_ticks(health):
    app = SimpleNamespace(rebalancing=False, in_recovery=False)
    readiness = Readiness(app, health)
    readiness.observe(0.0)
    assert health.ready() == {"partitions": "no partitions assigned"}
    readiness.assigned([SimpleNamespace(partition=0)], 1.0)
    app.in_recovery = True
    readiness.observe(1.0)
    assert health.ready() == {"state": "state is being read back"}
    app.in_recovery = False
    readiness.observe(2.0)
    assert health.ready() == {}
    readiness.observe(2.0 + QUIET_S)
    assert list(health.ready()) == ["kafka"]
    readiness.mark_tick(2.0 + QUIET_S)
    app.rebalancing = True
    readiness.observe(2.0 + QUIET_S)
    assert list(health.ready()) == ["rebalance"]


def test_a_worker_behind_kafkas_retention_is_not_ready_for_a_while_and_logs_the_jobs_that_lost_records(health):
    app = SimpleNamespace(rebalancing=False, in_recovery=False)
    readiness, counter = Readiness(app, health), metrics.STREAM_EXPIRED.labels("gpu.step.v1")
    readiness.assigned([SimpleNamespace(partition=0)], 1.0)
    before = counter._value.get()
    with capture_logs() as logs:
        for partition, offsets in ((0, range(5, 25)), (1, range(4))):
            place = SimpleNamespace(topic="gpu.step.v1", partition=partition)
            readiness.mark_expired(place, offsets, [f"job {partition}"], 1.0)
    assert [(line["first"], line["records"], line["jobs"]) for line in logs] == [(5, 20, ["job 0"]), (0, 4, ["job 1"])]
    assert counter._value.get() - before == 24
    readiness.observe(1.0)
    assert health.ready() == {
        "expired": "Kafka deleted 24 records of 2 partitions before they were processed; the log names their jobs"
    }
    readiness.mark_tick(1.0 + EXPIRED_S)
    readiness.observe(1.0 + EXPIRED_S)
    assert health.ready() == {}
