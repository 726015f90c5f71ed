"""Three brokers: kills, two at once among them, and rolling restarts lose and double nothing; sinks read nearby."""

import json
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.wait_limit import WAIT_S

from drumline.infra.localstack.ephemeral import ephemeral_settings, running_stack
from drumline.schemas.topics import Topic
from drumline.sinks.kafka.config import consumer_config

#: Two rounds. More are made by hand (docs/results/chaos.md).
KILLS = 16
TARGETS = "sink,worker,broker,broker-leader,two-brokers,rolling"
pytestmark = [pytest.mark.stack, pytest.mark.cluster, pytest.mark.timeout(600 + 60 * KILLS)]


def test_kills_of_brokers_and_rolling_restarts_lose_and_double_nothing(jars):
    command = [sys.executable, "-m", "drumline.cli.app", "chaos", "--brokers", "3", "--kill", TARGETS]
    process = subprocess.Popen(
        [*command, "--kills", str(KILLS), "--seed", "7", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        result, errors = process.communicate()
    except BaseException:  # the test's time is over: what the run started must not go on
        process.terminate()
        process.wait(90)
        raise
    assert process.returncode == 0, result[-3000:] + errors[-3000:]
    report = json.loads(result)
    assert (report["kills"], report["clean"]) == (KILLS, True)
    assert {"two-brokers", "rolling", "broker-leader"} <= set(report["targets"])
    totals = report["totals"]
    assert (totals["lost"], totals["doubled"], totals["results_missing"], totals["results_extra"]) == (0, 0, 0, 0)
    assert totals["published"] == totals["stored"] > 1_000_000


def test_a_sink_reads_from_the_replica_in_its_rack_and_without_one_from_leaders(jars, tmp_path):
    settings = ephemeral_settings(tmp_path, jars.parent, brokers=3)
    assert settings.kafka.rack == "rack2"
    nowhere = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"rack": ""})})
    with running_stack(settings):
        near = reading(settings, lambda places: {place["broker"] for place in places} == {2})
        assert {place["leader"] for place in near} > {2}, "the others' leaders are elsewhere"
        begin = time.monotonic()
        far = reading(nowhere, lambda places: time.monotonic() > begin + 5)
        assert [place["broker"] for place in far] == [place["leader"] for place in far]


def reading(settings, is_enough):
    """From which broker a sink's consumer reads each partition of a topic, once that is enough."""
    topic, latest = Topic.STEP.value, []

    def seen(text):
        partitions = json.loads(text)["topics"].get(topic, {"partitions": {}})["partitions"]
        latest[:] = [place for number, place in partitions.items() if place["fetch_state"] == "active"]

    config = consumer_config(settings, [Topic.STEP])
    consumer = Consumer({**config, "statistics.interval.ms": 200, "stats_cb": seen})
    count = settings.kafka.partitions
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
        until = time.monotonic() + WAIT_S
        while len(latest) < count or not is_enough(latest):
            assert time.monotonic() < until, latest
            consumer.poll(0.2)
        return latest
    finally:
        consumer.close()
