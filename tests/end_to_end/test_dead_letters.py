"""Thousands of bad records among good ones, and `drumline dlq` on what becomes of them."""

import json
from collections import Counter

import numpy as np
import pytest
from confluent_kafka import Producer
from support import drumline_program
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.kafka.config import dead_letter_config
from drumline.schemas.bounds.limits import MAX_BYTES
from drumline.schemas.dead_letters import Origin
from drumline.schemas.topics import Topic, dlq
from drumline.streams.worker.output import headers as stream_headers

pytestmark = pytest.mark.stack
BAD = [1_500, pytest.param(10_000, marks=pytest.mark.long)]
#: One topic per kind of batch: kernels, copies, steps.
TOPICS = (Topic.KERNEL, Topic.MEMCPY, Topic.STEP)
#: Noise of as many bytes as Kafka's default limit, less than our topics' own, still takes.
NOISE = 1_048_000
#: Rows of batches that are faultless but for their size: the first is about the largest allowed, the others are larger.
#: Kafka takes them all, compressed.
LARGEST = 23_000
OVERSIZED = (25_000, 30_000, 100_000)
HUGE = 5


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def dlq_command(pipeline, *arguments, code=0):
    ended = drumline_program.run("dlq", *arguments, environment=pipeline.environment)
    assert ended.returncode == code, ended.stderr
    return ended


class Poison:
    """Bad values of every kind; each lists the errors of its dead letter. All of its processes are its own."""

    def __init__(self, codec):
        self._codec, self._dice = codec, np.random.default_rng(5)
        self._good = {topic: codec.encode(any_batch(topic, 20, process_id(90), 0)) for topic in TOPICS}
        self._sequences = Counter()

    def values(self, count):
        """(topic, value, allowed errors), `count` of them."""
        kinds = (self.malformed, self.truncated, self.foreign, self.far, self.negative, self.unknown)
        for n, rows in enumerate(OVERSIZED, 1):
            yield Topic.KERNEL, self._codec.encode(alike(rows, n)), {TOO_LARGE}
        for n in range(HUGE):
            yield TOPICS[n % 3], self._dice.bytes(NOISE), {"BadFrame"}
        for n in range(count - HUGE - len(OVERSIZED)):
            yield kinds[n % len(kinds)](n)

    def malformed(self, n):
        topic = TOPICS[n % 3]
        return topic, self._good[topic][:5] + b"\xff" * 12 + self._dice.bytes(n % 300), {"BadEnvelope"}

    def truncated(self, n):
        topic = TOPICS[n // 6 % 3]
        whole = self._good[topic]
        return topic, whole[: int(self._dice.integers(0, len(whole)))], {"BadFrame", "BadEnvelope", "BadColumn"}

    def foreign(self, n):
        return TOPICS[n % 3], self._good[TOPICS[(n + 1) % 3]], {"WrongSchema"}

    def far(self, n):
        batch = self._next(Topic.KERNEL, 91)
        batch.columns["start_ns"][-1] = (1 << 62) + n
        return batch.topic, self._codec.encode(batch), {"OutOfBounds"}

    def negative(self, n):
        batch = self._next(Topic.STEP, 92)
        batch.columns["duration_ns"][0] = -1 - n
        return batch.topic, self._codec.encode(batch), {"OutOfBounds"}

    def unknown(self, n):
        topic = TOPICS[n // 6 % 3]
        return topic, b"\x00" + (1 << 30 | n).to_bytes(4, "big") + self._good[topic][5:], {"UnknownSchema"}

    def _next(self, topic, process):
        self._sequences[process] += 1
        return any_batch(topic, 3, process_id(process), self._sequences[process] - 1)


TOO_LARGE = "OutOfBounds, because of its size"


def alike(rows, sequence):
    """A batch of equal rows: nothing is wrong with it but that it may be too large."""
    batch = any_batch(Topic.KERNEL, 1, process_id(93), sequence)
    batch.envelope["rows"] = rows
    batch.columns = {name: np.repeat(column, rows) for name, column in batch.columns.items()}
    return batch


def error_of(values):
    too_large = (
        values["drumline.error.code"] == "OutOfBounds"
        and f"bytes, at most {MAX_BYTES}" in values["drumline.error.text"]
    )
    return TOO_LARGE if too_large else values["drumline.error.code"]


def publish_mixed(pipeline, count, good=40):
    """`count` bad records among 3 * `good` good batches; (topic, partition, offset) -> errors a letter may name."""
    producer = Producer(dead_letter_config(pipeline.settings, "test"))
    expected = {}
    poison, sequence = Poison(pipeline.codec), 0

    def arrived(error, message, errors):
        assert error is None, error
        expected[message.topic(), message.partition(), message.offset()] = errors

    producer.produce(Topic.KERNEL, key=process_id(93), value=pipeline.codec.encode(alike(LARGEST, 0)))
    pipeline.published[Topic.KERNEL] = pipeline.published.get(Topic.KERNEL, 0) + LARGEST
    for n, (topic, value, errors) in enumerate(poison.values(count)):
        if n % (count // good) == 0 and sequence < good:
            pipeline.publish(*(any_batch(t, 50, process_id(1), sequence) for t in TOPICS))
            sequence += 1
        producer.produce(  # sequences count per process and key: a kind has one key
            topic, key=process_id(n % 6), value=value, on_delivery=lambda e, m, errors=errors: arrived(e, m, errors)
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert (len(expected), sequence) == (count, good)
    return expected


@pytest.mark.parametrize("bad", BAD)
def test_bad_records_are_dead_letters_and_all_good_rows_are_stored(pipeline, bad):
    expected = publish_mixed(pipeline, bad)
    pipeline.start("--instance", "1")
    pipeline.wait_drained(100)
    pipeline.stop()
    report = pipeline.assert_exactly_once()
    want = Counter(topic for topic, _, _ in expected)
    assert {t.topic: t.dead for t in report.topics if t.dead} == want
    read = {}
    for topic in TOPICS:
        for dead_letter in pipeline.dead_letters(topic, want[topic]):
            values = {name: value.decode() for name, value in dead_letter.headers()}
            assert values["drumline.origin.topic"] == topic
            origin = topic.value, int(values["drumline.origin.partition"]), int(values["drumline.origin.offset"])
            assert error_of(values) in expected[origin], values
            assert values["drumline.error.text"]
            read[origin] = values
    assert read.keys() == expected.keys()
    listed = json.loads(dlq_command(pipeline, "list", "--json").stdout)
    assert listed["records"] == want
    assert sum(group["letters"] for group in listed["groups"]) >= bad


def test_replayed_records_are_stored_once_and_not_replayed_again(pipeline):
    """Two letters of one record (a sink's and a worker's), and one of another reason."""
    good, other = (any_batch(Topic.KERNEL, 50, process_id(0), n) for n in range(2))

    def dead_letter(batch, error, offset, by):
        pipeline.producer.produce(
            dlq(Topic.KERNEL), key=process_id(0), value=pipeline.codec.encode(batch),
            headers=[*stream_headers(Origin(Topic.KERNEL, 0, offset), error, by), ("traceparent", b"00-1")],
        )  # fmt: skip

    dead_letter(good, KeyError(), 0, "sink")
    dead_letter(good, KeyError(), 0, "streams")
    dead_letter(other, OSError(), 1, "streams")
    assert pipeline.producer.flush(20) == 0
    pipeline.published[Topic.KERNEL] = 100

    def replay(*arguments):
        ended = dlq_command(pipeline, "replay", Topic.KERNEL, "--json", *arguments)
        return tuple(json.loads(ended.stdout)[name] for name in ("due", "put_back"))

    assert "--yes" in dlq_command(pipeline, "replay", Topic.KERNEL, code=2).stderr
    assert replay("--dry-run") == (2, 0)
    assert replay("--yes", "--reason", "OSError") == (1, 1)
    assert replay("--yes", "--max", "1") == (1, 1)
    assert replay("--yes") == (0, 0)
    pipeline.drain(2)
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_record_replayed_too_early_is_rejected_again_and_its_dead_letter_has_the_origin(pipeline):
    garbage = b"\x00\x00\x00\x00\x02 SECRET"
    pipeline.raw(Topic.KERNEL, process_id(0), garbage)
    pipeline.drain(1)
    dlq_command(pipeline, "replay", dlq(Topic.KERNEL), "--yes")
    pipeline.drain(1)
    shown = dlq_command(pipeline, "show", Topic.KERNEL, "--json")
    first, second = map(json.loads, shown.stdout.splitlines())
    assert first["replay_of"] == ""
    assert second["replay_of"] == f"{dlq(Topic.KERNEL)}:0:0"
    assert (second["key"], second["bytes"], second["by"]) == (process_id(0), len(garbage), "sink")
    assert second["origin"]["offset"] == first["origin"]["offset"] + 1
    assert pipeline.audit().clean
    for arguments in (("show", Topic.KERNEL), ("list",)):
        printed = dlq_command(pipeline, *arguments).stdout
        assert "BadEnvelope" in printed
        assert "SECRET" not in printed
    assert "SECRET" not in shown.stdout
    assert "topics list" in dlq_command(pipeline, "show", "gpu.nothing.v1", code=2).stderr
