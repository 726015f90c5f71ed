"""Verdicts are read from the end, of this host's jobs only, and what stops that is stated once."""

import pytest
from confluent_kafka import OFFSET_END, KafkaError
from support.fakes.consumer import FakeConsumer

from drumline.infra.config.settings import Settings
from drumline.producers.stacks import follower as module
from drumline.producers.stacks.follower import REFRESH_S, RETRY_S, VerdictFollower
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic

ENVELOPE = {"run": "r", "rows": 0, "hosts": [], "causes": []}


class Message:
    def __init__(self, value, key=b"j", topic=Topic.STRAGGLER):
        self.content = value, key, topic

    def error(self):
        return None

    def value(self):
        return self.content[0]

    def key(self):
        return self.content[1]

    def topic(self):
        return self.content[2]

    def timestamp(self):
        return (0, 5_000)

    def headers(self):
        return None


class Lab:
    def __init__(self, listed):
        self.now, self.consumers, self.listed = 0.0, [], listed
        self.follower = VerdictFollower(Settings(), Codec(), lambda: {"j"}, self.consumer, lambda: self.now)

    def consumer(self, _settings):
        self.consumers.append(FakeConsumer(self.listed))
        return self.consumers[-1]

    def poll(self, *messages, seconds=0.0):
        self.now += seconds
        self.consumers[-1].messages += messages
        return self.follower.poll(0)


@pytest.fixture
def decoded(monkeypatch):
    """Records that were decoded, by job."""
    jobs = []
    monkeypatch.setattr(
        module, "READERS", {Topic.STRAGGLER: lambda batch, at_s: jobs.append((batch.envelope["job"], at_s))}
    )
    return jobs


def record(job="j"):
    return Codec().encode(Batch(Topic.STRAGGLER, {**ENVELOPE, "job": job}))


def test_only_records_of_this_hosts_jobs_are_decoded(decoded):
    lab = Lab({Topic.STRAGGLER: (0, 1)})
    lab.poll(Message(record()))
    lab.poll(Message(b"\x00garbage", key=b"other"))
    lab.poll(Message(None))
    assert (decoded, lab.follower.problem) == ([("j", 5.0)], "")
    assert lab.consumers[0].assigned == [{(Topic.STRAGGLER, 0): OFFSET_END, (Topic.STRAGGLER, 1): OFFSET_END}]


def test_a_record_that_is_none_is_left_out_with_its_reason(decoded):
    lab = Lab({Topic.STRAGGLER: (0,)})
    assert lab.poll(Message(b"\x00garbage")) is None
    assert "a record of gpu.straggler.v1 is not read" in lab.follower.problem
    lab.poll(Message(record()))
    assert decoded


def test_a_topic_that_comes_later_is_followed_then(decoded):
    lab = Lab({})
    lab.poll()
    assert not lab.consumers[0].assigned
    lab.listed[Topic.STRAGGLER] = (0,)
    lab.poll(seconds=REFRESH_S)
    assert len(lab.consumers[0].assigned) == 1


def test_a_missing_acl_is_named():
    lab = Lab({Topic.STRAGGLER: KafkaError.TOPIC_AUTHORIZATION_FAILED})
    lab.poll()
    assert "lacks ACLs: Read on topic gpu.straggler.v1 and group drumline-agent" in lab.follower.problem


def test_a_client_without_an_answer_for_long_is_replaced_and_starts_at_the_end(decoded):
    lab = Lab({Topic.STRAGGLER: (0,)})
    lab.poll()
    lab.consumers[0].listed = None
    lab.poll(seconds=REFRESH_S)
    assert "Kafka does not answer" in lab.follower.problem
    lab.poll(seconds=RETRY_S)
    assert [consumer.closed for consumer in lab.consumers] == [True, False]
    lab.poll(seconds=RETRY_S)
    assert lab.consumers[1].assigned == [{(Topic.STRAGGLER, 0): OFFSET_END}]
    assert lab.follower.problem == ""
