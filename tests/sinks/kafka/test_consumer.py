"""Errors that the sink's Kafka clients report outside of calls, without a broker."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from drumline.infra.config.kafka_settings import KafkaSettings
from drumline.infra.config.settings import Settings
from drumline.schemas.topics import Topic
from drumline.sinks.errors import Fenced, LostRecords, TransientKafkaError
from drumline.sinks.kafka.config import consumer_config
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.tables import table


@pytest.fixture
def consumer():
    client = SinkConsumer(Settings(kafka=KafkaSettings(bootstrap="127.0.0.1:9")), [Topic.KERNEL])
    yield client
    client.close()


def test_a_member_that_is_out_for_good_ends_the_sink(consumer):
    message = "Fatal error: Broker: Static consumer fenced by other consumer with same group.instance.id"
    consumer.events.of_consumer(KafkaError(KafkaError._FATAL, message, True))
    with pytest.raises(Fenced, match="fenced"):
        consumer.poll(0)
    consumer.events.of_consumer(KafkaError(KafkaError._FATAL, "anything else", True))
    with pytest.raises(KafkaException):
        consumer.poll(0)


def test_a_sink_whose_session_expired_commits_nothing(consumer, monkeypatch):
    """librdkafka drops the member id then; a halted broker that expired all members accepts commits without one."""
    requests = []
    client = SimpleNamespace(memberid=lambda: "", commit=lambda **request: requests.append(request), close=lambda: None)
    monkeypatch.setattr(consumer, "_consumer", client)
    state = consumer.states[Topic.KERNEL.value, 2] = PartitionState(table(Topic.KERNEL), 2, "id", 40)
    with pytest.raises(TransientKafkaError, match="no member"):
        consumer.commit([(state, 40, "", -1)])
    assert requests == []


def test_a_message_marks_the_end_by_its_code(consumer):
    message = "Fatal consumer error: Broker: Static consumer fenced by other consumer with same group.instance.id"
    with pytest.raises(Fenced, match="fenced"):
        consumer._on_error(KafkaError(KafkaError._FATAL, message), None)
    with pytest.raises(KafkaException):
        consumer._on_error(KafkaError(KafkaError._FATAL, "anything else"), None)


@pytest.mark.parametrize("held", [True, False])
def test_only_of_a_partition_that_is_held_a_missing_offset_is_a_loss(consumer, monkeypatch, held):
    """One that could not be taken up (the broker had just come back) gets librdkafka's own start: none."""
    monkeypatch.setattr(consumer, "topic_ids", lambda topics: dict.fromkeys(topics, "id"))
    monkeypatch.setattr(consumer.logs, "bounds", lambda state: (-1, -1))
    message = SimpleNamespace(topic=lambda: Topic.KERNEL.value, partition=lambda: 2)
    error = KafkaError(KafkaError._AUTO_OFFSET_RESET, "no previously committed offset available")
    if held:
        consumer.states[Topic.KERNEL.value, 2] = PartitionState(table(Topic.KERNEL), 2, "id", 0, False)
        with pytest.raises(LostRecords, match="partition 2"):
            consumer._on_error(error, message)
    else:
        consumer._on_error(error, message)


def test_without_any_broker_it_is_away_and_goes_on(consumer):
    consumer.events.of_consumer(KafkaError(KafkaError._TRANSPORT, "one of several brokers"))
    assert not consumer.events.brokers_down
    consumer.events.of_consumer(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert consumer.events.brokers_down
    assert consumer.poll(0) is None


def test_the_end_of_a_partition_hides_no_record_behind_it(consumer, monkeypatch):
    """Kafka tells the end of each partition after each fetch; the sink would write before it has read on."""
    end = SimpleNamespace(
        error=lambda: KafkaError(KafkaError._PARTITION_EOF), topic=lambda: Topic.KERNEL.value, partition=lambda: 1
    )
    nothing = dict.fromkeys(("error", "key", "value", "headers", "leader_epoch"), lambda: None)
    place = {"topic": end.topic, "partition": lambda: 2, "offset": lambda: 5, "timestamp": lambda: (1, 1_000)}
    messages = [end, end, SimpleNamespace(**nothing, **place), end]
    monkeypatch.setattr(consumer, "_consumer", SimpleNamespace(poll=lambda _: messages.pop(0) if messages else None))
    assert consumer.poll(0).offset == 5
    assert consumer.poll(0) is None
    monkeypatch.undo()


def test_a_named_sink_with_other_topics_is_another_member():
    def name(*topics):
        return consumer_config(Settings(instance="1"), topics)["group.instance.id"]

    assert name(Topic.KERNEL, Topic.STEP) == name(Topic.STEP, Topic.KERNEL) != name(Topic.KERNEL)
    assert "group.instance.id" not in consumer_config(Settings(), [Topic.KERNEL])


def test_a_host_with_a_rack_names_it_to_the_brokers():
    settings = Settings(kafka=KafkaSettings(rack="zone-a"))
    assert consumer_config(settings, [Topic.KERNEL])["client.rack"] == "zone-a"
    assert "client.rack" not in consumer_config(Settings(), [Topic.KERNEL])


def test_a_full_answer_is_not_held_back_for_more():
    """A broker waits for the smallest size of an answer, also where the largest one keeps it below that."""
    config = consumer_config(Settings(), [Topic.KERNEL])
    assert config["fetch.min.bytes"] <= min(config["fetch.message.max.bytes"], config["fetch.max.bytes"]) / 2


@pytest.mark.parametrize(
    ("bounds", "error", "text"),
    [
        pytest.param((0, 35), LostRecords, "offset 39, Kafka's log ends at 35", id="the log lost its end"),
        pytest.param((60, 90), LostRecords, r"removed 20 records \(40\.\.59\)", id="retention overtook the sink"),
        pytest.param((40, 90), TransientKafkaError, "out of range", id="retention removed the record before"),
        pytest.param((-1, -1), LostRecords, "does not have that", id="no broker states the bounds"),
    ],
)
def test_an_offset_that_kafka_does_not_have_is_named_by_its_cause(consumer, monkeypatch, bounds, error, text):
    monkeypatch.setattr(consumer.logs, "bounds", lambda state: bounds)
    state = PartitionState(table(Topic.KERNEL), 2, "id", 40)
    with pytest.raises(error, match=text):
        raise consumer.logs.out_of_range(state, "out of range")


@pytest.mark.parametrize(("end", "lost"), [(39, True), (40, False), (-1, False)])
def test_an_end_that_a_fetch_reports_too_low_counts_only_if_the_broker_repeats_it(consumer, monkeypatch, end, lost):
    monkeypatch.setattr(consumer.logs, "bounds", lambda state: (0, end))
    state = PartitionState(table(Topic.KERNEL), 2, "id", 40)
    consumer.logs.check_end(state, 40)
    if lost:
        with pytest.raises(LostRecords, match="offset 39, Kafka's log ends at 39"):
            consumer.logs.check_end(state, 39)
    else:
        consumer.logs.check_end(state, 39)
