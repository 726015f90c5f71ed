"""`drumline topics verify` names each producer whose records others do not find, or cannot read."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import producer_config
from drumline.infra.kafka.partitioner import partition_of
from drumline.infra.kafka.verification import VERIFIED, Verification
from drumline.schemas.codec import Codec
from drumline.schemas.keys import record_key
from drumline.schemas.parts.joining import JOINED_BY_AGENTS
from drumline.schemas.topics import Topic

PARTITIONS = 4
NUMBERS = dict.fromkeys(VERIFIED, PARTITIONS)


def message(topic, key, value, partition=None):
    place = partition_of(key or b"", PARTITIONS) if partition is None else partition
    return SimpleNamespace(
        topic=lambda: str(topic), key=lambda: key, value=lambda: value, partition=lambda: place, offset=lambda: 14,
        headers=list, timestamp=lambda: (1, 0),
    )  # fmt: skip


def batch_of(topic, process=0):
    batch = any_batch(topic, 1, process_id(process), 0, process)
    batch.envelope |= {"communicator": "c"} if topic == Topic.COLLECTIVE else {}
    return batch


def sent(topic, process=0, **changes):
    batch = batch_of(topic, process)
    given = {"key": record_key(batch).encode(), "value": Codec().encode(batch)} | changes
    return message(topic, **given)


def accounts(*messages, job=""):
    verification = Verification(Codec(), NUMBERS)
    for given in messages:
        verification.add(given)
    return verification.accounts(job)


@pytest.mark.parametrize("topic", VERIFIED)
def test_records_as_the_format_has_them_are_not_named(topic):
    [account] = accounts(sent(topic), sent(topic))
    assert (account.batches, account.keeps_format) == (2, True), account


@pytest.mark.parametrize("topic", [Topic.STEP, Topic.KERNEL, Topic.COLLECTIVE])
def test_a_key_on_the_wrong_partition_counts_for_its_producer_only(topic):
    wrong = sent(topic, 1)
    wrong.partition = lambda: (partition_of(wrong.key(), PARTITIONS) + 1) % PARTITIONS
    right, wronged = accounts(sent(topic), wrong)
    assert right.keeps_format
    assert (wronged.rank, wronged.process_id, wronged.wrong_partition, wronged.wrong_key) == (1, process_id(1), 1, 0)
    assert f"belongs on partition {partition_of(wrong.key(), PARTITIONS)}" in wronged.example


def test_a_key_that_is_not_the_formats_is_counted_and_a_missing_one_too():
    [other, without] = accounts(sent(Topic.STEP, key=b"other"), sent(Topic.KERNEL, key=None))
    assert (other.wrong_partition, other.wrong_key) == (0, 1)
    assert "key other should be job" in other.example
    assert (without.wrong_partition, without.wrong_key, "it has no key" in without.example) == (0, 1, True)


def test_each_part_of_a_joined_record_counts_for_its_process():
    topic = sorted(JOINED_BY_AGENTS)[0]
    batches = [batch_of(topic, number) for number in range(3)]
    joined = Codec().merge(topic, [Codec().encode(batch) for batch in batches])
    key = record_key(batches[0]).encode()
    wrong = (partition_of(key, PARTITIONS) + 1) % PARTITIONS
    reported = accounts(message(topic, key, joined, wrong))
    assert {(account.rank, account.wrong_partition) for account in reported} == {(0, 1), (1, 1), (2, 1)}


def test_a_record_that_does_not_decode_is_counted_for_its_key_without_its_bytes():
    [account] = accounts(sent(Topic.KERNEL, value=b"SECRET!"))
    assert (account.process_id, account.unreadable) == (process_id(0), 1)
    assert "bad_frame" in account.example
    assert "SECRET" not in account.example


def test_a_deleted_key_is_no_fault():
    [account] = accounts(sent(Topic.PROCESS, value=None))
    assert account.keeps_format


def test_only_producers_of_a_job_are_reported():
    assert accounts(sent(Topic.STEP), job="another") == []
    assert len(accounts(sent(Topic.STEP), job="job")) == 1


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def verified(pipeline, *arguments):
    program = [sys.executable, "-c", "from drumline.cli.app import main; main()", "topics", "verify", *arguments]
    done = subprocess.run(
        program, env={**os.environ, **pipeline.environment}, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.stack
def test_a_producer_of_drumline_puts_keys_where_they_are_expected(pipeline):
    keys, placed = [f"job-{number}".encode() for number in range(64)], {}

    def delivered(_, message):
        placed[message.key()] = message.partition()

    producer = Producer(producer_config(pipeline.settings, "test"))
    for key in keys:
        producer.produce(Topic.CONTROL, b"", key=key, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert placed == {key: partition_of(key, pipeline.settings.kafka.partitions) for key in keys}
    assert len(set(placed.values())) == pipeline.settings.kafka.partitions


@pytest.mark.stack
def test_the_command_names_the_producer_that_uses_librdkafkas_partitioner(pipeline):
    for rank in range(8):
        pipeline.publish(any_batch(Topic.KERNEL, 3, process_id(rank), 0, rank))
    assert verified(pipeline)[0] == 0
    default = producer_config(pipeline.settings, "test") | {"partitioner": "consistent_random"}
    producer = Producer(default)
    for rank in range(8, 16):
        batch = any_batch(Topic.KERNEL, 3, process_id(rank), 0, rank)
        producer.produce(Topic.KERNEL, Codec().encode(batch), key=record_key(batch))
    assert producer.flush(30) == 0
    code, out = verified(pipeline, "--json")
    reported = [json.loads(line) for line in out.splitlines()]
    assert code == 1
    assert len(reported) == 16
    assert {line["rank"] for line in reported if line["wrong_partition"]} <= set(range(8, 16))
    code, out = verified(pipeline)
    assert code == 1
    assert "16 batches of 16 producers" in out
    assert sum(json.loads(line)["batches"] for line in verified(pipeline, "--json", "--last", "1")[1].splitlines()) <= 4
