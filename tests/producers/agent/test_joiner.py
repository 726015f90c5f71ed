"""Joined records of a host: when they are sent, in which order, and what becomes of each message's answer."""

import pytest
from confluent_kafka import KafkaError
from support.labs.sink import any_batch
from support.tables import parts_of

from drumline.producers.agent import joiner as module
from drumline.producers.agent.joiner import REGISTRY_S, RecordJoiner
from drumline.producers.rings.progress import STATES
from drumline.schemas.codec import Codec
from drumline.schemas.errors import RegistryUnavailable
from drumline.schemas.parts.joining import MOST_PARTS, allowance_ns, interval_s
from drumline.schemas.topics import Topic


class Host:
    """A joiner before a client that takes `capacity` messages; `now`: the clock."""

    def __init__(self):
        self.codec, self.now, self.capacity = Codec(), 0.0, 1_000_000
        self.sent, self.answers, self.given = [], [], []
        self.joiner = RecordJoiner(self._send, self.codec, lambda: self.now)

    def _send(self, topic, key, value, answer):
        if len(self.sent) >= self.capacity:
            return False
        self.sent.append((topic, key, value))
        self.answers.append(answer)
        return True

    def batch(self, sequence, topic=Topic.STEP, key="job", world_size=1_024, **envelope):
        batch = any_batch(topic, 2, f"p{sequence}", sequence)
        batch.envelope.update(world_size=world_size, **envelope)
        value = self.codec.encode(batch)
        return self.joiner.send(topic, key, value, lambda error: self.given.append((sequence, error)))

    def sequences(self):
        """The batches of each message that was sent."""
        out = []
        for topic, _, value in self.sent:
            parts = parts_of(self.codec, topic, value)
            of = [value] if parts is None else parts.values
            out.append([self.codec.decode(topic, part, of=parts).envelope["sequence"] for part in of])
        return out


@pytest.fixture
def host():
    return Host()


def test_the_time_for_which_records_are_joined_grows_with_the_root_of_the_ranks():
    assert [interval_s(ranks) for ranks in (-1, 0, 1_024, 4_096, 16_384, 2**31 - 1)] == [0, 0, 1, 2, 4, 4]
    assert [interval_s(ranks, Topic.PROGRESS) for ranks in (1_024, 2_304, 16_384)] == [0.2, 0.8, 0.8]
    assert [interval_s(ranks, Topic.PROGRESS, True) for ranks in (1_024, 2_304, 16_384)] == [0.2, 1.5, 4]
    assert [allowance_ns(ranks) for ranks in (8, 1_024, 4_096)] == [0, 0, 2_000_000_000]


def test_records_are_due_on_a_grid_so_that_waiting_does_not_add(host):
    host.now = 7.9
    host.batch(0)
    host.batch(1, Topic.PROGRESS)
    host.batch(2, Topic.HOST)
    host.batch(3, Topic.HOST)
    host.now = 8.0
    host.joiner.flush(due_only=True)
    assert host.sequences() == [[0], [1], [2, 3]]


def progress(host, sequence, quiet_s, state="running", world_size=16_384):
    batch = any_batch(Topic.PROGRESS, 2, f"p{sequence}", sequence)
    batch.envelope.update(world_size=world_size, states=[*STATES])
    batch.columns["state"][:] = STATES.index(state)
    batch.columns["quiet_ns"][:] = round(quiet_s * 1e9)
    assert host.joiner.send(Topic.PROGRESS, "job", host.codec.encode(batch), lambda _: None)


def test_progress_of_a_large_job_waits_longer_while_its_processes_move(host):
    progress(host, 0, 0)
    host.now = 1.0
    progress(host, 1, 3.9)
    host.joiner.flush(due_only=True)
    assert not host.sent
    host.now = 4.0
    host.joiner.flush(due_only=True)
    assert host.sequences() == [[0, 1]]


@pytest.mark.parametrize(("quiet_s", "state"), [(4, "running"), (0, "stopped"), (0, "killed"), (0, "exited")])
def test_progress_of_a_process_that_does_not_move_takes_what_waits_along(host, quiet_s, state):
    progress(host, 0, 0)
    host.now = 1.0
    progress(host, 1, quiet_s, state)
    host.now = 1.5
    host.joiner.flush(due_only=True)
    assert not host.sent
    host.now = 1.6
    host.joiner.flush(due_only=True)
    assert host.sequences() == [[0, 1]]


def test_progress_of_small_jobs_never_waits_longer(host):
    progress(host, 0, 0, world_size=1_024)
    host.now = 0.2
    host.joiner.flush(due_only=True)
    assert host.sequences() == [[0]]


def test_what_the_processes_of_a_host_send_is_one_record_of_each_topic_and_key(host):
    for sequence in range(3):
        host.batch(sequence)
        host.batch(10 + sequence, Topic.HOST)
        host.batch(20 + sequence, Topic.COLLECTIVE, "job:c0")
    host.now = 0.9
    host.joiner.flush(due_only=True)
    assert not host.sent
    host.now = 1.0
    host.joiner.flush(due_only=True)
    assert host.sequences() == [[0, 1, 2], [10, 11, 12], [20, 21, 22]]
    assert {key for _, key, _ in host.sent} == {"job", "job:c0"}


def test_a_record_is_of_one_run_which_an_audit_counts(host):
    for sequence, run in enumerate(("r1", "r1", "r2", "r2")):
        host.batch(sequence, run=run)
    host.joiner.flush()
    assert host.sequences() == [[0, 1], [2, 3]]


def test_a_record_that_waits_for_a_full_queue_is_made_once(host, monkeypatch):
    merge, merges = host.codec.merge, []
    monkeypatch.setattr(host.codec, "merge", lambda *of: (merges.append(of), merge(*of))[1])
    host.capacity = 0
    for sequence in range(2):
        host.batch(sequence)
    assert not host.joiner.flush()
    assert not host.joiner.flush()
    assert len(merges) == 1
    host.batch(2)
    host.capacity = 1_000
    assert host.joiner.flush()
    assert host.sequences() == [[0, 1, 2]]


def test_a_message_alone_is_sent_as_it_is(host):
    host.batch(0)
    host.joiner.flush()
    assert parts_of(host.codec, Topic.STEP, host.sent[0][2]) is None


def test_other_topics_pass_at_once(host):
    assert host.joiner.send(Topic.KERNEL, "p", b"value", lambda _: None)
    assert host.sent == [(Topic.KERNEL, "p", b"value")]


def test_each_message_gets_the_answer_to_its_record(host):
    for sequence in range(3):
        host.batch(sequence)
    host.joiner.flush()
    error = KafkaError(KafkaError._TRANSPORT)
    host.answers[0](error)
    assert host.given == [(sequence, error) for sequence in range(3)]


def test_what_kafka_takes_in_no_joined_record_is_sent_alone(host):
    for sequence in range(3):
        host.batch(sequence)
    host.joiner.flush()
    host.answers[0](KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert host.sequences() == [[0, 1, 2], [0], [1], [2]]
    host.answers[2](None)
    assert host.given == [(1, None)]


def test_a_full_queue_loses_and_reorders_nothing(host):
    host.capacity = 0
    for sequence in range(2):
        assert host.batch(sequence)
    assert not host.joiner.flush()
    host.capacity = 1_000
    host.batch(2)
    assert host.joiner.flush()
    assert host.sequences() == [[0, 1, 2]]


def test_what_is_sent_alone_up_to_a_full_queue_is_held_no_longer(host, monkeypatch):
    monkeypatch.setattr(host.joiner, "_joined", lambda *_: None)
    for sequence in range(3):
        host.batch(sequence)
    host.capacity = 1
    assert not host.joiner.flush()
    monkeypatch.undo()
    host.capacity = 1_000
    assert host.joiner.flush()
    assert (host.sequences(), host.joiner._bytes) == ([[0], [1, 2]], 0)


def test_a_record_ends_at_its_bytes_its_parts_and_its_job(host, monkeypatch):
    for sequence in range(MOST_PARTS + 1):
        host.batch(sequence)
    assert [len(part) for part in host.sequences()] == [MOST_PARTS]
    host.batch(900, job="other")
    monkeypatch.setattr(module, "RECORD_BYTES", 50 + 2 * len(host.codec.encode(any_batch(Topic.STEP, 2, "p", 1))))
    for sequence in range(901, 904):
        host.batch(sequence, job="other")
    host.joiner.flush()
    assert host.sequences()[1:] == [[MOST_PARTS], [900, 901], [902, 903]]


def test_what_is_held_is_bounded(host, monkeypatch):
    monkeypatch.setattr(module, "HELD_BYTES", 20_000)
    for sequence in range(200):
        host.batch(sequence, Topic.COLLECTIVE, f"job:{sequence % 7}")
    assert host.sent
    assert host.joiner._bytes <= 20_000


def test_a_damaged_message_and_what_waits_with_it_are_sent_alone(host):
    host.batch(0)
    value = host.codec.encode(any_batch(Topic.STEP, 2, "p1", 1))
    host.joiner.send(Topic.STEP, "job", value[:-3], lambda _: None)
    host.joiner.flush()
    assert [sent for _, _, sent in host.sent][1:] == [value[:-3]]
    assert parts_of(host.codec, Topic.STEP, host.sent[0][2]) is None


def test_without_an_id_for_joined_records_each_message_is_sent_alone_for_a_while(host, monkeypatch):
    merges = []

    def merge(*of):
        merges.append(of)
        raise RegistryUnavailable("away")

    monkeypatch.setattr(host.codec, "merge", merge)
    for first in (0, 10):
        for sequence in range(first, first + 3):
            host.batch(sequence)
        assert host.joiner.flush()
    assert host.sequences() == [[0], [1], [2], [10], [11], [12]]
    assert len(merges) == 1
    monkeypatch.undo()
    host.now += REGISTRY_S
    for sequence in range(20, 23):
        host.batch(sequence)
    assert host.joiner.flush()
    assert host.sequences()[6:] == [[20, 21, 22]]
