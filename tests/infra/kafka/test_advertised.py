"""Brokers that state addresses where nobody reaches them: one sentence names the setting, in every program."""

import subprocess
import sys

import pytest
from support.wait_limit import WAIT_S

from drumline.infra.kafka.advertised import advertised_error, unreachable
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.ephemeral import free_ports
from drumline.infra.localstack.kafka import broker
from drumline.infra.localstack.stack import wait_until
from drumline.producers.agent.producer import KafkaSender

pytestmark = pytest.mark.stack


@pytest.fixture
def misled(private, monkeypatch, jars):
    """A stack whose broker answers at its port, and states another, where nothing listens."""
    [closed] = free_ports(1)
    right = broker.properties

    def wrong(settings, number=1):
        return f"{right(settings, number)}advertised.listeners=PLAINTEXT://127.0.0.1:{closed}\n"

    monkeypatch.setattr(broker, "properties", wrong)
    local_stack.up(private, wait=False)
    assert wait_until(lambda: broker.broker_answers(private), WAIT_S)
    yield private, f"127.0.0.1:{closed}"
    local_stack.down(private)


def test_wrong_advertised_listeners_are_named_with_the_address(misled, environment_of):
    settings, stated = misled
    sentence = advertised_error(settings)
    assert f"its brokers are at {stated}" in sentence
    assert "(connection refused): correct advertised.listeners" in sentence
    commands = (["topics", "apply"], ["stream"], ["replay", "lab/demo/ddp-gpu-bound", "--job", "j"])
    programs = [
        subprocess.Popen(
            [sys.executable, "-m", "drumline.cli.app", *command], env=environment_of(settings), text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )
        for command in commands
    ]  # fmt: skip
    for command, program in zip(commands, programs, strict=True):
        _, errors = program.communicate(timeout=WAIT_S)
        assert program.returncode != 0
        assert stated in errors, (command, errors)
        assert "advertised.listeners" in errors
        assert "Traceback" not in errors
    sender = KafkaSender(settings, ["gpu.kernel.v1"])
    assert wait_until(lambda: not sender.ready() and "advertised.listeners" in sender.problem, WAIT_S)


def test_brokers_that_are_reached_are_no_problem(stack):
    assert advertised_error(stack) == ""
    [port] = free_ports(1)
    nowhere = type("Broker", (), {"host": "127.0.0.1", "port": port})
    local = type("Broker", (), {"host": "localhost", "port": stack.local.kafka_port})
    assert unreachable(stack, [nowhere, local]) == "", "one is enough"
    assert unreachable(stack, []) == ""
