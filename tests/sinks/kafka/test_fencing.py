"""A sink's name belongs to one: fenced by its own client it goes on, fenced by another sink it ends."""

import time
from types import SimpleNamespace
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.schemas.topics import Topic
from drumline.sinks.kafka import consumer, fencing
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.fencing import is_sole_member


class Group:
    """An admin client that answers with one list of member ids after the other; a KafkaError is raised or, within the
    group, listed."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def list_groups(self, group, timeout):
        match self.answers.pop(0):
            case KafkaError() as error:
                raise KafkaException(error)
            case [KafkaError() as error]:
                return [SimpleNamespace(error=error, members=[])]
            case members:
                return [SimpleNamespace(error=None, members=[SimpleNamespace(id=member) for member in members])]


LOADING = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
FORMER, NEWER, LONGER = (f"{name}-{uuid4()}" for name in ("sinks-1", "sinks-1", "sinks-1-2"))


@pytest.mark.parametrize(
    ("answers", "sole"),
    [
        ([[FORMER, LONGER]], True),
        ([[]], True),
        ([[LONGER]], True),
        ([[NEWER, LONGER]] * 5, False),
        ([[NEWER, LONGER], [LONGER]], True),  # its own request to join, answered after it had given up: soon forgotten
        ([KafkaError(KafkaError._TRANSPORT), [LOADING], [FORMER]], True),
        ([KafkaError(KafkaError._TRANSPORT), [LOADING], *[[NEWER]] * 5], False),
    ],
)
def test_a_member_is_the_sole_one_if_it_or_soon_none_of_its_name_is_listed(answers, sole, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(fencing.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(fencing.time, "sleep", lambda _: now_s.append(now_s.pop() + fencing.FORGOTTEN_S / 4.5))
    group = Group(*answers)
    assert is_sole_member(group, "sinks", "sinks-1", FORMER) is sole
    assert group.answers == []


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def batches(first, count=4):
    return [any_batch(Topic.KERNEL, 500, process_id(0), first + i, 0) for i in range(count)]


@pytest.mark.stack
@pytest.mark.long
def test_a_named_sink_goes_on_after_its_own_client_has_challenged_it(pipeline, kill9, wait_for_stack, monkeypatch):
    """The broker is away for longer than the session, and back before the sink polls again."""
    config, recreate, renewed = consumer.consumer_config, SinkConsumer.recreate_client, []
    short = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 300}
    monkeypatch.setattr(consumer, "consumer_config", lambda *args: config(*args) | short)
    monkeypatch.setattr(SinkConsumer, "recreate_client", lambda self: renewed.append(self) or recreate(self))
    pipeline.publish(*batches(0))
    killed = []

    def stopping(sink):
        if sink.counts.records == 4 and not killed:
            killed.append(kill9("broker"))
            time.sleep(3.5)
            wait_for_stack()
            pipeline.publish(*batches(4))
            time.sleep(4.0)  # for a heartbeat, once it is connected again (reconnect.backoff.max.ms)
        return sink.counts.records >= 8

    pipeline.settings.instance, pipeline.settings.sink.flush_s = "1", 0.05
    pipeline.sink(stopping).run()
    assert len(renewed) == 1
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_of_two_sinks_with_one_name_the_older_ends(pipeline):
    pipeline.publish(*batches(0))
    older = pipeline.started("--instance", "1", flush_s=0.05)
    pipeline.wait_drained()
    younger = pipeline.start("--instance", "1", flush_s=0.05)
    assert older.wait(WAIT_S) == 6  # once the younger has been listed for longer than a session
    assert b"another sink runs as this instance" in older.stderr.read()
    pipeline.sinks.remove(older)
    pipeline.publish(*batches(4))
    pipeline.wait_drained()
    assert younger.poll() is None
    pipeline.assert_exactly_once()
