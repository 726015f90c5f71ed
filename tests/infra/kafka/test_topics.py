"""Topics are created as declared, drift is reported and repaired, and records are shown without their bytes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from uuid import uuid4

import numpy as np
import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from support.wait_limit import WAIT_S

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import Settings
from drumline.infra.kafka import tail as topics_tail
from drumline.infra.kafka.config import client_config, producer_config
from drumline.infra.kafka.connect import BrokerUnreachable
from drumline.infra.kafka.tail import entries, jsonable
from drumline.infra.kafka.topic_admin import (
    IN_SYNC,
    ActualTopic,
    DeclaredTopic,
    TopicsAdmin,
    checked,
    declared_topics,
    plan,
)
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.model import has_schema
from drumline.schemas.topics import JOINED_TOPICS, TOPICS, Topic, dlq
from drumline.streams.worker.app import wirings

KERNEL = str(Topic.KERNEL)
WANTED = DeclaredTopic("t", 4, 1, {"retention.ms": "10", "cleanup.policy": "delete"})


def actual(partitions=4, replication=1, **config):
    base = {"retention.ms": "10", "cleanup.policy": "delete", "segment.ms": "99"}
    return {"t": ActualTopic(partitions, replication, base | {k.replace("_", "."): v for k, v in config.items()})}


class FakeMessage:
    """The part of confluent_kafka.Message that `entries` uses."""

    def __init__(self, topic, value, headers=None):
        self._topic, self._value, self._headers = topic, value, headers

    def topic(self):
        return self._topic

    def value(self):
        return self._value

    def headers(self):
        return self._headers

    def key(self):
        return b"p"

    def timestamp(self):
        return 1, 0

    def partition(self):
        return 3

    def offset(self):
        return 14


def kernels(job, rows=2):
    envelope = {"job": job, "run": "r", "rows": rows, "names": ["gemm", "copy"]}
    start = np.full(rows, time.time_ns())
    return Codec().encode(
        Batch(KERNEL, envelope, {"name": np.arange(rows) % 2, "duration_ns": np.full(rows, 7), "start_ns": start})
    )


def test_every_topic_is_declared_once_and_has_a_schema_or_is_internal():
    assert sorted(spec.topic for spec in TOPICS) == sorted(Topic)
    assert all(has_schema(spec.topic) for spec in TOPICS if spec.topic.startswith("gpu."))


def test_all_topics_have_the_same_partitions_and_dead_letters_have_room_for_headers():
    topics = {topic.name: topic for topic in declared_topics(Settings(kafka=KafkaSettings()), 6)}
    assert {topics[str(spec.topic)].partitions for spec in TOPICS} == {6}
    dead_letters = topics[dlq(KERNEL)]
    assert int(dead_letters.config["max.message.bytes"]) > int(topics[KERNEL].config["max.message.bytes"])


def test_a_missing_topic_is_created_and_one_as_declared_is_left_alone():
    assert plan([WANTED], {})[0].action == "create"
    assert plan([WANTED], actual())[0].action == "ok"


def test_drift_is_altered_and_other_settings_of_the_owner_are_not():
    step = plan([WANTED], actual(retention_ms="5", segment_ms="1"))[0]
    assert (step.action, step.drift) == ("alter", {"retention.ms": ("5", "10")})


@pytest.mark.parametrize(
    ("topic", "remedy"),
    [
        (KERNEL, "set DRUMLINE_KAFKA__PARTITIONS=2 for all programs"),
        (Topic.RANGE, "delete the topics gpu.range.v1 "),
    ],
)
def test_another_number_of_partitions_is_an_error_with_a_remedy(topic, remedy):
    step = plan([replace(WANTED, name=topic)], {topic: actual(partitions=2, retention_ms="5")["t"]})[0]
    assert step.action == "error"
    assert remedy in step.remedy


def test_topics_that_no_stream_worker_reads_may_have_their_own_partitions():
    config = Settings(kafka=KafkaSettings(partitions=6, topic_partitions={Topic.RANGE: 2, Topic.STRAGGLER: 1}))
    topics = {topic.name: topic.partitions for topic in declared_topics(config)}
    assert {str(spec.topic): topics[str(spec.topic)] for spec in TOPICS if topics[str(spec.topic)] != 6} == {
        "gpu.range.v1": 2,
        "gpu.straggler.v1": 1,
    }


@pytest.mark.parametrize("numbers", [{KERNEL: 8}, {Topic.TICK: 8}, {Topic.RANGE: 0}, {"gpu.rang.v1": 2}])
def test_topics_that_stream_workers_read_share_one_number(numbers):
    with pytest.raises(ValueError, match=r"not one or more for one of gpu\.process\.v1, gpu\.range\.v1, "):
        KafkaSettings(topic_partitions=numbers)


def test_the_topics_that_share_a_number_are_those_that_stages_read():
    assert {topic for stage in wirings(Settings()) for topic in stage.inputs} == set(JOINED_TOPICS) - {Topic.TICK}


def test_other_replication_is_reported_but_no_error():
    step = plan([WANTED], actual(replication=3))[0]
    assert step.action == "ok"
    assert "3 replicas" in step.problem


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "2"), (3, "2")])
def test_no_write_is_acknowledged_by_one_broker_alone_where_there_are_several(replication, in_sync):
    config = Settings(kafka=KafkaSettings(replication=replication))
    topics = declared_topics(config)
    assert {(topic.replication, topic.config[IN_SYNC]) for topic in topics} == {(replication, in_sync)}


def test_a_topic_with_one_replica_is_not_altered_to_need_two_in_sync():
    wanted = replace(WANTED, replication=3, config={**WANTED.config, IN_SYNC: "2"})
    step = plan([wanted], actual(min_insync_replicas="1"))[0]
    assert (step.action, step.drift) == ("ok", {})
    assert plan([wanted], actual(replication=3, min_insync_replicas="1"))[0].drift == {IN_SYNC: ("1", "2")}


@pytest.mark.parametrize(
    ("replicas", "owners", "altered"),
    [(3, "2", {}), (1, "2", {IN_SYNC: ("2", "1")})],
    ids=["more than the default", "more than there are, which would take no record"],
)
def test_replicas_in_sync_that_the_owner_set_are_lowered_only_where_nothing_could_be_written(replicas, owners, altered):
    wanted = DeclaredTopic.of(Settings(), "t", 4, WANTED.config)
    [step] = plan([wanted], actual(replication=replicas, min_insync_replicas=owners))
    assert (step.action, step.drift) == ("alter" if altered else "ok", altered)


@pytest.mark.parametrize(
    ("existing", "problem"),
    [
        ({}, "does not exist; run `drumline topics apply`"),
        (actual(retention_ms="5"), "run `drumline topics apply`"),
        (actual(replication=3), "has 3 replicas, wanted 1; Kafka's tool kafka-reassign-partitions"),
        (actual(partitions=2), "has 2 partitions"),
    ],
    ids=["missing", "drift", "replicas", "partitions"],
)
def test_a_check_fails_for_whatever_differs(existing, problem):
    [step] = checked(plan([WANTED], existing))
    assert step.action == "error"
    assert step.problem.startswith(problem)
    [fine] = checked(plan([WANTED], actual()))
    assert (fine.action, fine.problem) == ("ok", "")


def test_rows_are_shown_with_their_place_and_their_words():
    shown = list(entries(Codec(), FakeMessage(KERNEL, kernels("a")), {}))
    assert [(e["_partition"], e["_offset"], e["_row"], e["name"]) for e in shown] == [
        (3, 14, 0, "gemm"),
        (3, 14, 1, "copy"),
    ]


def test_rows_of_another_job_are_not_shown():
    message = FakeMessage(KERNEL, kernels("a"))
    assert list(entries(Codec(), message, {"job": "b"})) == []
    assert len(list(entries(Codec(), message, {"job": "a", "run": "r"}))) == 2


def test_a_batch_is_one_line_on_request():
    (shown,) = entries(Codec(), FakeMessage(KERNEL, kernels("a", 9)), {}, batches=True)
    assert (shown["rows"], "duration_ns" in shown) == (9, False)


@pytest.mark.parametrize("topic", [KERNEL, dlq(KERNEL)])
def test_bad_records_and_dead_letters_never_show_their_bytes(topic):
    message = FakeMessage(topic, b"SECRET!", [("error.code", b"bad_frame"), ("broken", b"\xff"), ("none", None)])
    (shown,) = entries(Codec(), message, {})
    assert "SECRET" not in json.dumps(shown)
    assert "bad_frame" in json.dumps(shown)


def test_a_tombstone_is_shown_as_one():
    (shown,) = entries(Codec(), FakeMessage(str(Topic.PROCESS), None), {})
    assert shown["tombstone"]


def test_numbers_that_json_lacks_become_null():
    assert (
        json.dumps(jsonable({"a": [float("nan"), 1.5], "b": float("inf")}), allow_nan=False)
        == '{"a": [null, 1.5], "b": null}'
    )


def test_a_broker_that_is_not_there_is_one_clear_message():
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 .*drumline up"):
        TopicsAdmin(Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:1")), timeout_s=0.3).existing(["t"])


def test_a_broker_that_goes_silent_while_a_topic_is_read_to_its_end_is_not_waited_for(monkeypatch):
    silent = SimpleNamespace(poll=lambda _: None, assign=lambda _: None, close=lambda: None)
    listed = SimpleNamespace(topics={KERNEL: SimpleNamespace(error=None, partitions=[0])})
    monkeypatch.setattr(topics_tail, "Consumer", lambda _: silent)
    monkeypatch.setattr(topics_tail.ConnectionProbe, "metadata", lambda *_: listed)
    with pytest.raises(BrokerUnreachable, match="went silent"):
        list(topics_tail.read(Settings(), KERNEL, "beginning", follow=False, timeout_s=0.01))


def drumline(stack, *arguments):
    environment = {**os.environ, "DRUMLINE_KAFKA__BOOTSTRAP": stack.bootstrap}
    program = [sys.executable, "-c", "from drumline.cli.app import main; main()", "topics", *arguments]
    return subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ran(stack, *arguments):
    process = drumline(stack, *arguments)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, [json.loads(line) for line in out.splitlines() if line.startswith("{")], err


def test_an_unknown_topic_and_a_wrong_option_are_bad_input():
    nowhere = Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:1"))
    assert ran(nowhere, "tail", "nope")[0] == 2
    assert ran(nowhere, "tail", KERNEL, "--max", "0")[0] == 2


@pytest.mark.stack
def test_apply_is_idempotent_and_repairs_drift(stack):
    assert ran(stack, "apply", "--json")[0] == 0
    code, lines, _ = ran(stack, "apply", "--check", "--json")
    assert code == 0
    assert {line["state"] for line in lines} == {"ok"}
    admin = AdminClient(client_config(stack, "test"))
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    drifted = ConfigResource(ResourceType.TOPIC, str(Topic.STEP), incremental_configs=[entry])
    for future in admin.incremental_alter_configs([drifted]).values():
        future.result()
    for arguments, failed, state in ((["--check"], 1, "error"), ([], 0, "altered"), ([], 0, "ok")):
        code, lines, _ = ran(stack, "apply", "--json", *arguments)
        assert (code, next(line["state"] for line in lines if line["topic"] == Topic.STEP)) == (failed, state)


@pytest.mark.stack
@pytest.mark.parametrize("topic", [KERNEL, dlq(KERNEL)])
@pytest.mark.parametrize("hours", [2, -24 * 400])
def test_a_record_is_taken_and_has_the_brokers_time_however_wrong_its_senders_clock_is(stack, topic, hours):
    sent_ms, answers = int((time.time() + hours * 3600) * 1000), []
    assert ran(stack, "apply", "--json")[0] == 0
    producer = Producer(producer_config(stack, "test"))
    producer.produce(topic, b"", partition=0, timestamp=sent_ms, on_delivery=lambda *answer: answers.append(answer))
    producer.flush(10)
    [(error, sent)] = answers
    assert error is None
    kind, time_ms = sent.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert abs(time_ms / 1000 - time.time()) < 600


@pytest.mark.stack
def test_apply_with_another_number_of_partitions_changes_nothing_and_fails(stack):
    assert ran(stack, "apply", "--json")[0] == 0
    code, lines, _ = ran(stack, "apply", "--json", "--partitions", str(stack.kafka.partitions + 1))
    assert code == 1
    assert next(line["state"] for line in lines if line["topic"] == KERNEL) == "error"
    present = TopicsAdmin(stack).existing([KERNEL])
    assert present[KERNEL].partitions == stack.kafka.partitions


@pytest.mark.stack
def test_the_remedy_for_topics_that_grew_works_when_it_is_followed(clean_stack):
    assert ran(clean_stack, "apply", "--json")[0] == 0
    admin, grown = AdminClient(client_config(clean_stack, "test")), [KERNEL, str(Topic.COLLECTIVE), str(Topic.STEP)]
    for future in admin.create_partitions([NewPartitions(name, 6) for name in grown]).values():
        future.result()
    # The broker answers before its metadata has them.
    assert wait_until(lambda: all(len(admin.list_topics(name).topics[name].partitions) == 6 for name in grown), 30)
    code, lines, _ = ran(clean_stack, "apply", "--json")
    assert code == 1
    [remedy] = {line["remedy"] for line in lines if line["state"] == "error"}
    [named] = re.findall(r"delete the topics (.+?) \(", remedy)
    assert sorted(named.split(", ")) == sorted(grown)
    for future in admin.delete_topics(named.split(", ")).values():
        future.result()
    assert wait_until(lambda: not set(grown) & set(admin.list_topics(timeout=10).topics), 30)
    assert ran(clean_stack, "apply", "--json")[0] == 0
    assert ran(clean_stack, "apply", "--check", "--json")[0] == 0


@pytest.mark.stack
def test_tail_shows_rows_and_bad_records_of_a_real_topic(stack):
    assert ran(stack, "apply", "--json")[0] == 0
    job = f"tail-{uuid4()}"
    producer = Producer(producer_config(stack, "test"))
    producer.produce(KERNEL, kernels(job, 3), key="k")
    producer.produce(KERNEL, b"SECRET!", key="k")
    assert producer.flush(30) == 0
    code, lines, err = ran(stack, "tail", KERNEL, "--from", "beginning", "--no-follow", "--json", "--job", job)
    assert code == 0, err
    assert [line["name"] for line in lines if "error" not in line] == ["gemm", "copy", "gemm"]
    assert "bad_frame" in [line["error"]["reason"] for line in lines if "error" in line]
    assert "SECRET" not in json.dumps(lines)


@pytest.mark.stack
def test_ctrl_c_ends_tail_without_a_traceback(stack):
    assert ran(stack, "apply", "--json")[0] == 0
    process = drumline(stack, "tail", KERNEL, "--from", "beginning", "--json")
    producer = Producer(producer_config(stack, "test"))
    producer.produce(KERNEL, kernels("ctrl-c", 1), key="k")
    producer.flush(30)
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (130, "")
