"""Outages and rejections that every Kafka client of drumline survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from support.fakes.broker import FakeBroker
from support.metrics_scraper import free_port
from support.wait_limit import WAIT_S

from drumline.infra.config.settings import Settings
from drumline.infra.kafka import lost_brokers as broker_loss
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import silence_librdkafka
from drumline.infra.kafka.lost_brokers import BrokerWatch, has_no_brokers, with_broker_watch
from drumline.infra.localstack.stack import wait_until
from drumline.producers.agent import producer as agent_sender

#: As long as real ones: librdkafka takes the metadata of a shorter one for malformed.
TOPIC = "a-topic-with-a-name-" * 5
#: What a client has to know of the fake broker.
OLD = {"api.version.request": False, "broker.version.fallback": "0.9.0"}


@pytest.fixture
def broker():
    broker = FakeBroker(TOPIC)
    yield broker
    broker.close()


def client_of(broker, **config):
    settings = Settings(kafka={"bootstrap": f"127.0.0.1:{broker.port}"})
    return AdminClient({**silence_librdkafka(client_config(settings, "test")), **OLD, **config})


def forgets_its_broker(broker, client, within_s):
    """The broker, cut off, names no broker for a while; whether the client does not find it again within so long."""
    assert client.list_topics(timeout=10).brokers
    broker.has_address = False
    with suppress(KafkaException):
        client.list_topics(timeout=2)
    broker.has_address = True
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if client.list_topics(TOPIC, timeout=2).brokers:
                return False
        except KafkaException:
            continue
    return True


def test_clients_outlive_a_broker_that_names_no_broker_but_not_all_of_them():
    """librdkafka 2.16 asks the bootstrap addresses again, or not, as its threads have it."""
    for _ in range(10):
        broker = FakeBroker(TOPIC)
        found_again = not forgets_its_broker(broker, client_of(broker), within_s=4)
        broker.close()
        if found_again:
            return
    pytest.fail("none of ten clients found its broker again")


#: Such a client never does.
NEVER_AGAIN = {"metadata.recovery.strategy": "none"}


def test_without_bootstrapping_again_none_would(broker):
    assert forgets_its_broker(broker, client_of(broker, **NEVER_AGAIN), within_s=6)


@pytest.mark.parametrize(("config", "reported"), [({}, False), (NEVER_AGAIN, True)])
def test_a_client_reports_that_it_has_no_brokers_but_not_while_its_broker_is_down(
    broker, config, reported, monkeypatch
):
    monkeypatch.setattr(broker_loss, "EVERY_MS", 100)
    monkeypatch.setattr(broker_loss, "NO_BROKERS_S", 1.0)
    errors = []
    client = client_of(broker, **with_broker_watch({**config, "error_cb": errors.append}))
    if config:
        assert forgets_its_broker(broker, client, within_s=3)
    else:
        assert client.list_topics(timeout=10).brokers
        broker.close()
        time.sleep(3)
    client.poll(0.1)
    assert [has_no_brokers(error) for error in errors if error.fatal()] == [True] * reported


def statistics(seconds, *sources):
    return json.dumps(
        {"ts": seconds * 10**6, "brokers": {str(i): {"source": source} for i, source in enumerate(sources)}}
    )


def test_a_client_without_an_address_for_half_a_minute_is_reported():
    reported = []
    addresses = BrokerWatch(reported.append)
    for seconds, source in (0, "logical"), (29, "logical"), (30, "learned"), (31, "logical"), (61, "configured"):
        addresses(statistics(seconds, source))
    assert reported == []
    for seconds in 65, 94, 95, 100:
        addresses(statistics(seconds, "logical"))
        assert len(reported) == (seconds >= 95)
    assert has_no_brokers(reported[0])


def test_an_agent_replaces_a_client_without_brokers(broker, monkeypatch):
    monkeypatch.setattr(broker_loss, "EVERY_MS", 100)
    monkeypatch.setattr(broker_loss, "NO_BROKERS_S", 1.0)
    config, answers, old = agent_sender.producer_config, [], OLD | {"enable.idempotence": False}
    monkeypatch.setattr(agent_sender, "producer_config", lambda *args: config(*args) | old | NEVER_AGAIN)
    monkeypatch.setattr(agent_sender, "REPLACE_S", 0.1)
    sender = agent_sender.KafkaSender(Settings(kafka={"bootstrap": f"127.0.0.1:{broker.port}"}), [TOPIC])
    assert wait_until(sender.ready, WAIT_S)
    first = sender._client
    assert forgets_its_broker(broker, first, within_s=1)
    assert sender.ready(), "no answer has arrived yet"
    assert sender.send(TOPIC, "key", b"value", answers.append)
    assert wait_until(lambda: sender.poll(0.1) or sender._client is not first, WAIT_S)
    assert [error.code() for error in answers] == [KafkaError._PURGE_QUEUE], "to be sent again"
    assert sender.waiting == 0
    assert wait_until(sender.ready, WAIT_S)
    assert sender.problem == ""


@pytest.mark.parametrize("program", ["sink", "stream"])
def test_ctrl_c_ends_a_program_that_still_looks_for_its_broker(program, tmp_path):
    environment = os.environ | {
        "DRUMLINE_KAFKA__BOOTSTRAP": "127.0.0.1:9", "DRUMLINE_LOCAL__STATE": str(tmp_path),
        "DRUMLINE_METRICS_PORT": str(free_port()),
    }  # fmt: skip
    command = [sys.executable, "-m", "drumline.cli.app", program]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True)
    while "serving metrics" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=WAIT_S)
    assert (process.returncode, message) == (130, "")
