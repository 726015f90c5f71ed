"""Tests of which partitions no sink reads, from what Kafka answers; without a broker."""

import struct
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from drumline.schemas.topics import Topic
from drumline.sinks.kafka.coverage import CHECK_S, Coverage, read_assignment

UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
KERNEL, STEP = Topic.KERNEL.value, Topic.STEP.value


def packed(places):
    """The assignment as Kafka's consumer protocol writes it."""
    topics = {topic: sorted(number for name, number in places if name == topic) for topic, _ in places}
    parts = [struct.pack(">hi", 0, len(topics))]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(numbers)}i", len(name), name, len(numbers), *numbers))
    return b"".join(parts) + struct.pack(">i", -1)


class Cluster:
    """An admin client. `topics`: name -> topic id, or an error; two partitions each. `members`: what each holds."""

    def __init__(self):
        self.topics: dict = {KERNEL: "a", STEP: "b"}
        self.members: list = []
        self.state = "Stable"

    def describe_topics(self, names, request_timeout):
        answers = {}
        for name, topic_id in self.topics.items():
            answers[name] = Future()
            if isinstance(topic_id, KafkaError):
                answers[name].set_exception(KafkaException(topic_id))
            else:
                partitions = [SimpleNamespace(id=number) for number in range(2)]
                answers[name].set_result(SimpleNamespace(topic_id=topic_id, partitions=partitions))
        return answers

    def list_groups(self, group, timeout):
        members = [SimpleNamespace(assignment=packed(places)) for places in self.members]
        return [SimpleNamespace(error=None, state=self.state, members=members)]


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def checked(cluster):
    coverage, clock = Coverage(cluster, "sinks", [Topic.KERNEL, Topic.STEP]), [0.0]

    def check(held):
        clock[0] += CHECK_S
        coverage.check(held, clock[0])
        return coverage.check(held, clock[0]), coverage.reason

    return check


def places(topic, topic_id=""):
    return {(topic, 0): topic_id, (topic, 1): topic_id}


def test_an_assignment_comes_back_as_kafka_writes_it():
    held = {(KERNEL, 0), (KERNEL, 3), (STEP, 1)}
    assert read_assignment(packed(held)) == held
    assert read_assignment(b"") == set()


def test_nothing_is_wrong_while_the_group_reads_all(cluster, checked):
    assert checked(places(KERNEL, "a") | places(STEP, "b")) == ("", "")
    cluster.members = [set(places(KERNEL)), set(places(STEP))]
    assert checked(places(KERNEL, "a")) == checked(places(KERNEL, "a")) == ("", "")


def test_partitions_that_stay_unread_make_it_subscribe_again(cluster, checked):
    cluster.members = [set(places(STEP))]
    text = f"no sink reads 2 partitions of {KERNEL}"
    assert checked(places(STEP, "b")) == ("", text)
    assert checked(places(STEP, "b")) == (text, text)


def test_during_a_rebalance_nothing_counts_as_unread(cluster, checked):
    cluster.members = [set(places(STEP))]
    checked(places(STEP, "b"))
    cluster.state = "PreparingRebalance"
    assert checked(places(STEP, "b")) == ("", "")
    cluster.state = "Stable"
    assert checked(places(STEP, "b"))[0] == "", "two checks in a row"


def test_a_topic_that_does_not_exist_is_named_and_nothing_is_done_until_it_does(cluster, checked):
    cluster.topics[KERNEL] = UNKNOWN
    text = f"{KERNEL} does not exist (`drumline topics apply`)"
    assert checked(places(STEP, "b")) == checked(places(STEP, "b")) == ("", text)


def test_a_recreated_topic_is_not_read_under_its_former_id(checked):
    assert checked(places(KERNEL, "former") | places(STEP, "b"))[0] == f"{KERNEL}: recreated"


def test_without_an_answer_nothing_is_known(cluster, checked):
    cluster.topics[KERNEL] = KafkaError(KafkaError._TRANSPORT)
    assert checked({}) == ("", "")
