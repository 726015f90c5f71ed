"""Commands end at once where nothing listens at the broker's address; programs that wait report it."""

from __future__ import annotations

import socket
import threading

import pytest
from structlog.testing import capture_logs
from support.metrics_scraper import free_port
from typer.testing import CliRunner

from drumline.cli.operate import audit, dlq, topics
from drumline.cli.record import replay
from drumline.infra.config.settings import Settings
from drumline.infra.kafka.connect import BrokerUnreachable, require_listener
from drumline.infra.runtime.listeners import connect_error
from drumline.lab.demo_recording import DEMO_RECORDING


@pytest.fixture
def unused(tmp_path):
    return Settings(local={"state": tmp_path, "kafka_port": free_port()})


def test_a_rejected_connect_names_address_setting_and_the_command_that_starts_one(unused):
    hint = "`drumline up` starts the local one; DRUMLINE_KAFKA__BOOTSTRAP names another"
    with pytest.raises(BrokerUnreachable) as answer:
        require_listener(unused)
    assert str(answer.value) == f"no Kafka broker answers at {unused.bootstrap} (connection refused). {hint}"
    with capture_logs() as logs:
        require_listener(unused, is_patient=True)
    assert "waiting for one" in logs[0]["event"]


@pytest.mark.parametrize(
    ("command", "arguments", "code"),
    [
        (topics, ["apply"], 1),
        (topics, ["tail", "gpu.kernel.v1"], 1),
        (dlq, ["list"], 1),
        (dlq, ["show", "gpu.kernel.v1"], 1),
        (dlq, ["replay", "gpu.kernel.v1"], 1),
        (replay, [str(DEMO_RECORDING)], 1),
        (audit, [], 10),
    ],
)
def test_a_command_without_a_broker_ends_at_once(command, arguments, code, unused, monkeypatch):
    """These are the letters of a plain connect, which comes before a client that tries again for 10 s."""
    monkeypatch.setattr(command, "settings", lambda: unused)
    answer = CliRunner().invoke(command.app, arguments)
    assert (answer.exit_code, "(connection refused)" in answer.stderr) == (code, True)


def test_one_address_that_answers_is_enough():
    with socket.create_server(("127.0.0.1", 0)) as server:
        addresses = [("127.0.0.1", free_port()), ("127.0.0.1", server.getsockname()[1])]
        assert connect_error("Kafka", addresses) == ""
    assert connect_error("Kafka", [("no-such-host.invalid", 1)]) != ""


def test_an_address_that_does_not_answer_is_waited_for_with_a_note(monkeypatch, capsys):
    over, connects = threading.Event(), []

    def connect(*_):
        connects.append(threading.current_thread())
        over.wait()
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr("drumline.infra.runtime.listeners.NOTE_S", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert connect_error("Kafka at far:9092", [("far", 9092)], timeout_s=0.05) == "timed out"
    assert capsys.readouterr().err == "drumline: waiting for Kafka at far:9092\n"
    over.set()
    connects[0].join()
