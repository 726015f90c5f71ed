"""The local stack with a real broker and a real engine: what survives which death."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State, held, locked, write_json
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack import status as stack_status
from drumline.infra.localstack.clickhouse.engine import answers, query
from drumline.infra.localstack.processes import own_processes

pytestmark = pytest.mark.stack
Environment = Callable[[Settings], dict[str, str]]


def drumline(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from drumline.cli.app import main; main()", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S)


def pid_of(settings: Settings, name: str) -> int:
    [process] = own_processes(settings)[name]
    return process.pid


def produce(settings: Settings, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": settings.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def consume(settings: Settings, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": settings.bootstrap, "group.id": f"read-{topic}"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    result: list[bytes] = []
    deadline = time.monotonic() + WAIT_S
    while len(result) < count and time.monotonic() < deadline:
        result += [message.value() for message in consumer.consume(count, 1.0) if message.error() is None]
    consumer.close()
    return result


def test_a_second_up_reports_that_it_runs_and_changes_nothing(stack: Settings, environment: dict[str, str]) -> None:
    before = pid_of(stack, "broker"), pid_of(stack, "engine")
    done = drumline(environment, "up", "--servers", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["already_running"] is True
    assert result["kafka"] == stack.bootstrap
    assert (pid_of(stack, "broker"), pid_of(stack, "engine")) == before


def test_up_with_other_ports_than_the_running_stack_is_refused(stack: Settings, environment: dict[str, str]) -> None:
    done = drumline({**environment, "DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT": "1"}, "up", "--servers")
    assert done.returncode == 1
    assert "drumline down" in done.stderr


def test_who_only_looks_whether_a_supervisor_runs_keeps_none_from_starting(tmp_path: Path) -> None:
    state = State(tmp_path)
    write_json(state.plan, {"children": []})
    command = [sys.executable, "-m", "drumline.infra.localstack.supervisor", str(state.root)]
    with locked(state.lock, "", shared=True):  # what `held` does, for longer
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        time.sleep(1.0)
    try:
        assert local_stack.wait_until(lambda: held(state.lock), WAIT_S), process.stderr
    finally:
        process.terminate()
        assert process.wait(WAIT_S) == 0


def test_a_second_supervisor_is_kept_out_by_the_lock(stack: Settings) -> None:
    state = State.of(stack)
    command = [sys.executable, "-m", "drumline.infra.localstack.supervisor", str(state.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "another supervisor" in done.stderr
    assert held(state.lock)


def test_status_reports_every_process_and_no_secret(stack: Settings, environment: dict[str, str]) -> None:
    for arguments in (["status"], ["status", "--json"]):
        done = drumline(environment, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        for path in stack_status.password_files(stack).values():
            assert path.read_text().strip() not in done.stdout
    result = json.loads(done.stdout)
    assert result["running"]
    assert result["processes"]["broker"]["answers"]
    assert result["processes"]["engine"]["answers"]
    assert set(result["password_files"]) == {"writer", "analyst", "page", "grafana"}
    assert all(result["processes"][name]["rss_mib"] > 0 for name in ("supervisor", "broker", "engine"))


def test_servers_listen_on_loopback_only(stack: Settings) -> None:
    for name in ("broker", "engine"):
        [process] = own_processes(stack)[name]
        listening = [c for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert listening
        assert {c.laddr.ip.removeprefix("::ffff:") for c in listening} == {"127.0.0.1"}


def test_broker_killed_comes_back_with_every_acknowledged_record(
    stack: Settings, new_topic: Callable[..., str], kill9: Callable[[str], int], wait_for_stack: Callable[[], None]
) -> None:
    topic, values = new_topic(), [str(i).encode() for i in range(500)]
    produce(stack, topic, values)
    restarts = stack_status.status(stack)["processes"]["broker"]["restarts"]
    died = kill9("broker")
    wait_for_stack()
    assert pid_of(stack, "broker") != died
    assert consume(stack, topic, 500) == values
    assert stack_status.status(stack)["processes"]["broker"]["restarts"] == restarts + 1


def test_engine_killed_comes_back_with_every_acknowledged_row(
    stack: Settings, kill9: Callable[[str], int], wait_for_stack: Callable[[], None]
) -> None:
    query(stack, "CREATE DATABASE IF NOT EXISTS gpu_kill", "writer")
    query(stack, "CREATE TABLE gpu_kill.t (n UInt64) ENGINE = MergeTree ORDER BY n", "writer")
    query(stack, "INSERT INTO gpu_kill.t SELECT number FROM numbers(100000)", "writer")
    broker, died = pid_of(stack, "broker"), kill9("engine")
    wait_for_stack()
    assert pid_of(stack, "engine") != died
    assert query(stack, "SELECT count(), sum(n) FROM gpu_kill.t", "analyst") == "100000\t4999950000"
    assert pid_of(stack, "broker") == broker
    query(stack, "DROP DATABASE gpu_kill SYNC", "writer")


def test_supervisor_killed_takes_the_engine_along_and_up_recovers_the_rest(
    stack: Settings, environment: dict[str, str], new_topic: Callable[..., str], kill9: Callable[[str], int]
) -> None:
    topic = new_topic()
    produce(stack, topic, [b"kept"])
    orphan = pid_of(stack, "broker")
    kill9("supervisor")
    assert local_stack.wait_until(lambda: not own_processes(stack)["engine"], WAIT_S)
    assert stack_status.status(stack)["processes"]["broker"]["orphan"]
    done = drumline(environment, "up", "--servers")
    assert done.returncode == 0, done.stderr
    assert pid_of(stack, "broker") != orphan
    assert consume(stack, topic, 1) == [b"kept"]


def test_down_finds_what_a_killed_supervisor_left(
    stack: Settings, environment: dict[str, str], kill9: Callable[[str], int]
) -> None:
    kill9("supervisor")
    done = drumline(environment, "down")
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert not any(own_processes(stack).values())
    again = drumline(environment, "down")
    assert (again.returncode, again.stdout) == (0, "nothing was running\n")
    local_stack.up(stack)  # the session's stack, for the tests that follow


def test_down_spares_a_foreign_process_with_a_stored_pid(private: Settings) -> None:
    state = State.of(private)
    state.create()
    foreign = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(state.root)])
    try:
        state.supervisor.write_text(json.dumps({"pid": foreign.pid}))
        state.children.write_text(json.dumps({"broker": {"pid": foreign.pid}, "engine": {"pid": foreign.pid}}))
        assert local_stack.down(private) is False
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_a_port_in_use_is_named_with_the_setting_to_change(
    private: Settings, jars: object, environment_of: Environment
) -> None:
    with socket.create_server(("127.0.0.1", private.local.kafka_port)):
        done = drumline(environment_of(private), "up", "--servers")
    assert done.returncode == 1
    assert f"port {private.local.kafka_port}" in done.stderr
    assert "DRUMLINE_LOCAL__KAFKA_PORT" in done.stderr
    assert not held(State.of(private).lock)


def test_foreground_with_a_broker_elsewhere_runs_the_engine_only(
    stack: Settings, private: Settings, environment_of: Environment
) -> None:
    command = [sys.executable, "-c", "from drumline.cli.app import main; main()", "up", "--servers", "--foreground"]
    command += ["--bootstrap", stack.bootstrap]
    process = subprocess.Popen(command, env=environment_of(private), stderr=subprocess.PIPE, text=True)
    assert local_stack.wait_until(lambda: answers(private), WAIT_S, lambda: process.poll() is None)
    assert pid_of(private, "supervisor") == process.pid
    assert own_processes(private)["broker"] == []
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert not any(own_processes(private).values())


def test_a_broker_elsewhere_that_does_not_answer_is_reported(private: Settings, environment_of: Environment) -> None:
    done = drumline(environment_of(private), "up", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr


def test_an_engine_that_cannot_start_fails_up_with_its_log_and_leaves_nothing(
    stack: Settings, private: Settings
) -> None:
    (private.local.state / "clickhouse" / "data" / "status").mkdir(parents=True)  # a file in every healthy data folder
    chosen = private.model_copy(update={"kafka": private.kafka.model_copy(update={"bootstrap": stack.bootstrap})})
    with pytest.raises(StackError, match="status"):
        local_stack.up(chosen)
    assert not any(own_processes(private).values())
    assert not held(State.of(private).lock)
