"""What every Kafka client of ours has to survive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from fake_broker import FakeBroker
from scraping import free_port

from drumline.infra.kafka import client_config
from drumline.infra.kafka_contact import quiet
from drumline.infra.settings import Settings

#: As long as real ones: librdkafka takes the metadata of a shorter one for malformed.
TOPIC = "a-topic-with-a-name-" * 5


@pytest.fixture
def broker():
    broker = FakeBroker(TOPIC)
    yield broker
    broker.close()


def client_of(broker, **config):
    settings = Settings(kafka={"bootstrap": f"127.0.0.1:{broker.port}"})
    old = {"api.version.request": False, "broker.version.fallback": "0.9.0"}
    return AdminClient({**quiet(client_config(settings, "test")), **old, **config})


def forgets_its_broker(broker, client, within_s):
    """The broker, cut off, names no broker for a while; whether the client does not find it again within so long."""
    assert client.list_topics(timeout=10).brokers
    broker.knows_itself = False
    with suppress(KafkaException):
        client.list_topics(timeout=2)
    broker.knows_itself = True
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if client.list_topics(TOPIC, timeout=2).brokers:
                return False
        except KafkaException:
            continue
    return True


def test_clients_outlive_a_broker_that_names_no_broker_but_not_all_of_them():
    """librdkafka 2.16 asks the bootstrap addresses again, or not, as its threads have it (docs/failures.md)."""
    for _ in range(10):
        broker = FakeBroker(TOPIC)
        found_again = not forgets_its_broker(broker, client_of(broker), within_s=4)
        broker.close()
        if found_again:
            return
    pytest.fail("none of ten clients found its broker again")


def test_without_bootstrapping_again_none_would(broker):
    assert forgets_its_broker(broker, client_of(broker, **{"metadata.recovery.strategy": "none"}), within_s=6)


@pytest.mark.parametrize("program", ["sink", "stream"])
def test_ctrl_c_ends_a_program_that_still_looks_for_its_broker(program, tmp_path):
    environment = os.environ | {
        "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9", "DRUMLINE_LOCAL__STATE": str(tmp_path),
        f"DRUMLINE_{program.upper()}__METRICS_PORT": str(free_port()),
    }  # fmt: skip
    command = [sys.executable, "-m", "drumline.infra.cli", program]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
    while "serving metrics" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")
