"""A batch that Kafka's client cannot unpack is one dead letter; what lies behind it is stored."""

from functools import partial
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.config.settings import Settings
from drumline.infra.localstack.clickhouse.engine import wait_until
from drumline.infra.telemetry import metrics
from drumline.lab.bench.overhead.job import peak_mb
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks import sink as sink_loop
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.unreadable import MOST_BATCHES, UnreadableBatches, batches_in_a_row, next_batch
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.tables.tables import table

#: Unpacked, more than UNPACKED_BYTES.
RECORDS, ZEROS = 5, 8_000_000


@pytest.mark.parametrize("records", [1, 2, 3, 4, 5, 63, 64, 65, 10_000])
def test_the_end_of_the_batch_is_found(records):
    reads = []

    def inside(offset):
        reads.append(offset)
        return 7 <= offset < 7 + records

    assert next_batch(7, inside) == 7 + records
    assert len(reads) <= 2 * records.bit_length() + 1


def test_batches_in_a_row_are_one_search():
    """Batches of 3 offsets from 6 on, 100 of them; then a record that can be read."""
    row = batches_in_a_row(6, lambda offset: offset // 3 * 3 if offset < 306 else -1, lambda: False)
    assert row == [(first, first + 3) for first in range(6, 306, 3)]
    endless = batches_in_a_row(6, lambda offset: offset // 3 * 3, lambda: False)
    assert endless[-1] == (6 + 3 * (MOST_BATCHES - 1), 6 + 3 * MOST_BATCHES)
    assert batches_in_a_row(6, lambda offset: offset // 3 * 3, lambda: True) == [(6, 9)]


def missing():
    return metrics.SINK_GAPS.labels(Topic.KERNEL.value)._value.get()


@pytest.fixture
def loop():
    """A sink whose search has ended: offsets 7 to 11 are such a batch, at the end of a gap from 5 on."""
    state = PartitionState(table(Topic.KERNEL), 0, "id", 5, opened=True, unreadable=7)
    calls = []
    kafka = SimpleNamespace(
        states={(Topic.KERNEL.value, 0): state}, reader=None, holds=lambda _: True, seek=lambda *_: None,
        **{name: partial(calls.append, name) for name in ("resume", "pause", "leave_group", "subscribe")},
    )  # fmt: skip
    sink = sink_loop.Sink(Settings(), kafka, SimpleNamespace(), lambda: None, Codec(), lambda: True)
    sink._unreadable.take = lambda: [(state, [(7, 12)])]
    yield SimpleNamespace(sink=sink, state=state, calls=calls, kafka=kafka)
    sink._unreadable.close()
    sink._cycle.close()


def test_no_offset_of_the_batch_is_missing_and_its_range_ends_with_it(loop):
    before = missing()
    loop.sink._continue_behind_unreadable()
    assert missing() - before == 2
    assert [(entry.record.offset, entry.last) for entry in loop.state.entries] == [(7, 11)]
    assert (loop.state.next_offset, loop.state.unreadable, loop.calls) == (12, -1, ["resume"])
    record = Record(Topic.KERNEL.value, 0, 12, b"p", b"", 0, [])
    loop.state.take(RangeEntry(record, 0, None, Disposition.DEAD_LETTER), 0.0)
    first, second = loop.state.cut(1_000, 0.0).range, loop.state.cut(1_000, 0.0).range
    assert ((first.first, first.last), (second.first, second.last)) == ((7, 11), (12, 12))


def test_a_seek_that_fails_is_tried_again_with_a_new_assignment(loop):
    def seek(*_):
        raise TransientKafkaError("gpu.kernel.v1 partition 0: erroneous state")

    loop.kafka.seek = seek
    loop.sink._continue_behind_unreadable()
    assert loop.calls == ["pause", "leave_group", "subscribe"]
    assert loop.sink.counts.retries == 1


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


@pytest.mark.stack
def test_a_batch_that_cannot_be_unpacked_is_a_dead_letter_and_as_many_records_as_it_has_offsets(pipeline, monkeypatch):
    monkeypatch.setattr(sink_loop, "OBSERVE_S", 0.0)
    searches, search = [], UnreadableBatches.search
    monkeypatch.setattr(UnreadableBatches, "search", lambda *given: searches.append(given) or search(*given))
    batches = [any_batch(Topic.KERNEL, 100, process_id(0), n) for n in range(4)]
    pipeline.publish(*batches[:2])
    bomb = {
        "bootstrap.servers": pipeline.settings.bootstrap, "compression.type": "zstd", "linger.ms": 2_000,
        "message.max.bytes": 900_000_000, "batch.size": 900_000_000, "partitioner": "murmur2_random",
    }  # fmt: skip
    for _ in range(2):
        producer = Producer(bomb)
        for _ in range(RECORDS):
            producer.produce(Topic.KERNEL, bytes(ZEROS), key=process_id(0))
        assert producer.flush(30) == 0
    pipeline.publish(*batches[2:])
    reasons = []

    def stopping(sink):
        reasons.append(sink.health.ready().get("unreadable", ""))
        return sink.counts.records >= 6

    pipeline.settings.instance, pipeline.settings.sink.flush_s = "1", 0.05
    sink = pipeline.sink(stopping)
    sink.run()
    assert (sink.counts.records, sink.counts.dead_letters, sink.counts.rows) == (6, 2, 400)
    assert len(searches) == 1, "one consumer for both batches"
    assert any("partition" in reason and "offset 2" in reason for reason in reasons)
    first, second = pipeline.dead_letters(Topic.KERNEL, 2)
    assert dict(first.headers())["drumline.error.code"] == b"UnreadableBatch"
    assert b"offsets 7..11 are" in dict(second.headers())["drumline.error.text"]
    report = pipeline.audit()
    assert report.clean, report.findings
    [account] = [account for account in report.topics if account.topic == Topic.KERNEL]
    assert (account.records, account.stored, account.dead) == (4 + 2 * RECORDS, 4, 2 * RECORDS)
    assert pipeline.drained()
    delete = "ALTER TABLE {db}.ledger DELETE WHERE topic = 'gpu.kernel.v1' AND offset = 1"
    pipeline.kept_client.command(
        delete.replace("{db}", pipeline.settings.clickhouse.database), settings={"mutations_sync": 2}
    )
    [lost] = [finding for finding in pipeline.audit().findings if finding.kind == "lost"]
    assert lost.text.startswith("1 records"), "it hides no loss beside it"
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 4))
    assert pipeline.drain(1).counts.records == 1, "the next sink starts behind them"


#: Unpacked, 720 MB; 700 kB in Kafka.
BOMB_RECORDS, BOMB_ZEROS = 48, 15_000_000


@pytest.mark.stack
@pytest.mark.long
def test_large_batches_of_gzip_are_unpacked_one_after_the_other(pipeline):
    """librdkafka bounds zstd only; an answer of the broker has one batch of the largest size."""
    for partition in (0, 1, 0, 1):  # the first answer may have one partition only, the second has both
        bomb = Producer({
            "bootstrap.servers": pipeline.settings.bootstrap, "compression.type": "gzip", "linger.ms": 20_000,
            "message.max.bytes": 900_000_000, "batch.size": 900_000_000,
        })  # fmt: skip
        for _ in range(BOMB_RECORDS):
            bomb.produce(Topic.KERNEL, bytes(BOMB_ZEROS), key=b"bomb", partition=partition)
        assert bomb.flush(120) == 0
        del bomb  # it holds all of them
    sink = pipeline.start()
    assert wait_until(lambda: pipeline.ledger() > BOMB_RECORDS, 300), "the second answer"
    peak = peak_mb(sink.pid)
    sink.kill()
    assert 600 < peak < 1_200
    accepted = "SELECT count() AS n FROM {db}.ledger WHERE disposition != 'dead_letter'"
    assert pipeline.query(accepted) == [{"n": 0}]
