"""The sink against a real broker and a real engine, under kills. The audit checks the rows, test_audit.py the audit."""

import random
import time

import numpy as np
import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.schemas.topics import Topic
from drumline.sinks import intake
from drumline.sinks.errors import LostRecords, TransientKafkaError
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.kafka.assignment import Assignment
from drumline.sinks.tables.tables import SEVERITIES, TABLES, ColumnSource, table

pytestmark = pytest.mark.stack


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def batches(count, process=0, first=0, rows=500, topic=Topic.KERNEL):
    return [any_batch(topic, rows, process_id(process), first + i, process) for i in range(count)]


def killed_in(method):
    """A Writer whose `method` does its work and then dies, or dies before: what kill -9 does at that point."""

    class Killed(BaseException):
        pass

    def after(self, pending):
        method(self, pending)
        raise Killed

    def before(self, pending):
        raise Killed

    return Killed, after, before


def test_every_column_of_every_topic_comes_back_as_it_was_published(pipeline):
    sent = {}
    for stored in TABLES:
        batch = sent[stored] = any_batch(stored.topic, 1 if stored.topic is Topic.PROCESS else 60, process_id(1), 0, 1)
        pipeline.publish(batch)
    pipeline.start("--instance", "1")
    pipeline.wait_drained()
    for stored, batch in sent.items():
        names = {c.name: c for c in stored.columns if c.source is not ColumnSource.META}
        columns = ", ".join(
            f"toUnixTimestamp64Nano({n}) AS {n}" if c.type.startswith("DateTime64") else n for n, c in names.items()
        )
        read = pipeline.query(f"SELECT {columns} FROM {{db}}.{stored.target} ORDER BY _row")
        if not stored.upsert:
            assert len(read) == batch.rows, stored.name
        index = [0] if stored.topic is Topic.PROCESS else range(batch.rows)
        want = []
        for i in index:
            row = {}
            for name, column in names.items():
                if column.enum:
                    value = {number: label for label, number in SEVERITIES.items()}[batch.columns[column.field][i]]
                    row[name] = value
                elif column.source is ColumnSource.PACKED:
                    value = batch.columns[column.field][i]
                    row[name] = None if column.null and value == -1 else value
                elif column.source is ColumnSource.DICTIONARY:
                    row[name] = batch.envelope[column.dictionary][batch.columns[column.field][i]]
                else:
                    row[name] = pipeline.codec.decode(stored.topic, pipeline.codec.encode(batch)).envelope[column.field]
            want.append(row)
        actual = {tuple(sorted(row.items(), key=str)) for row in map(_plain, read)}
        assert actual <= {tuple(sorted(row.items(), key=str)) for row in map(_plain, want)}, stored.name


def _plain(row):
    return {k: str(float(v)) if isinstance(v, float | np.floating) else str(v) for k, v in row.items()}


def test_kill_nine_at_any_moment_loses_and_doubles_nothing(pipeline):
    dice, published, in_flight = random.Random(7), 0, 0
    for life in range(5):
        for process in range(3):
            pipeline.publish(*batches(6, process, life * 6), *batches(3, process, life * 3, 90, Topic.STEP))
        published += 27
        sink = pipeline.started("--instance", "1", flush_rows=500, flush_s=0.05)
        time.sleep(dice.uniform(0.0, 0.2))
        sink.kill()
        in_flight += pipeline.ledger() < published
    assert in_flight
    pipeline.start("--instance", "1")
    pipeline.wait_drained()
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_second_sink_joins_and_one_dies(pipeline):
    pipeline.publish(*(b for p in range(4) for b in batches(5, p)))
    first = pipeline.started("--instance", "1", flush_s=0.05)
    pipeline.start("--instance", "2", flush_s=0.05)
    pipeline.publish(*(b for p in range(4) for b in batches(5, p, 5)))
    time.sleep(2.0)
    pipeline.publish(*(b for p in range(4) for b in batches(5, p, 10)))
    first.kill()
    pipeline.start("--instance", "1", flush_s=0.05)
    pipeline.wait_drained()
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_engine_killed_in_the_middle(pipeline, kill9, wait_for_stack):
    pipeline.publish(*(b for p in range(4) for b in batches(10, p)))  # of several partitions: both lanes have work
    sink = pipeline.started("--instance", "1", flush_rows=2_000, flush_s=0.05)
    kill9("engine")
    pipeline.publish(*(b for p in range(4) for b in batches(30, p, 10)))
    wait_for_stack()
    pipeline.wait_drained()
    assert sink.poll() is None, "the sink outlives the engine"
    pipeline.assert_exactly_once()


@pytest.mark.parametrize(
    ("method", "when"), [("insert_rows", "before"), ("insert_ledger", "before"), ("insert_ledger", "after")]
)
def test_a_range_with_a_committed_intent_is_finished_by_the_next_sink(pipeline, monkeypatch, method, when):
    pipeline.publish(*batches(12))
    killed, after, before = killed_in(getattr(RangeWriter, method))
    monkeypatch.setattr(RangeWriter, method, after if when == "after" else before)
    with pytest.raises(killed):
        pipeline.drain(99)
    monkeypatch.undo()
    report = pipeline.audit()
    assert {f.kind for f in report.findings} >= {"not_drained"}
    assert "lost" not in {f.kind for f in report.findings}
    pipeline.publish(*batches(3, first=12))
    ledger_was_there = method == "insert_ledger" and when == "after"
    sink = pipeline.drain(3 if ledger_was_there else 15)
    assert sink.counts.replays == (0 if ledger_was_there else 1)
    pipeline.assert_exactly_once()


def remove_all(pipeline):
    """As retention does."""
    admin = AdminClient({"bootstrap.servers": pipeline.settings.bootstrap})
    places = [TopicPartition(Topic.KERNEL, p, -1) for p in range(pipeline.settings.kafka.partitions)]
    for done in admin.delete_records(places).values():
        done.result(WAIT_S)


def test_a_range_with_a_committed_intent_that_kafka_removed_stops_the_sink(pipeline, monkeypatch):
    pipeline.publish(*batches(12))
    killed, _, before = killed_in(RangeWriter.insert_rows)
    monkeypatch.setattr(RangeWriter, "insert_rows", before)
    with pytest.raises(killed):
        pipeline.drain(99)
    monkeypatch.undo()
    remove_all(pipeline)
    with pytest.raises(LostRecords, match="removed 12 records"):
        pipeline.drain(1)
    assert pipeline.start("--instance", "1", "--topic", Topic.KERNEL).wait(WAIT_S) == 4
    pipeline.sinks.clear()


def test_partitions_that_cannot_be_taken_up_at_once_are_taken_up_later_and_are_no_loss(pipeline, monkeypatch):
    """librdkafka then assigns them by itself, and complains that nothing was ever committed there."""
    state, failed = Assignment._state, []

    def fails_once(self, *place):
        failed.append(place)
        if len(failed) == 2:
            raise TransientKafkaError("the broker has just come back")
        return state(self, *place)

    monkeypatch.setattr(Assignment, "_state", fails_once)
    pipeline.publish(*batches(4))
    assert pipeline.drain(4).counts.retries == 1
    pipeline.assert_exactly_once()


@pytest.mark.parametrize("client", ["admin", "consumer"])
def test_a_sink_whose_client_has_no_known_brokers_continues_with_new_ones(pipeline, client):
    pipeline.publish(*batches(4))
    clients = []

    def stopping(sink):
        if sink.counts.records == 4 and not clients:
            clients.append(sink.kafka._consumer)
            getattr(sink.kafka.events, f"of_{client}")(KafkaError(KafkaError._ALL_BROKERS_DOWN, "", True))
            pipeline.publish(*batches(4, first=4))
        return sink.counts.records == 8

    pipeline.settings.instance, pipeline.settings.sink.flush_s = "1", 0.05
    running_sink = pipeline.sink(stopping)
    running_sink.run()
    assert running_sink.kafka._consumer is not clients[0]
    pipeline.assert_exactly_once()


@pytest.mark.long  # the member that it was is waited for, 10 s
def test_a_named_sink_that_comes_back_with_other_topics_reads_those(pipeline):
    """Kafka would give it the partitions that it had, while no other member joins."""
    pipeline.publish(*batches(2), *batches(2, topic=Topic.STEP))
    pipeline.drain(2)
    pipeline.drain(2, [Topic.STEP])
    pipeline.assert_exactly_once()


def test_batches_published_twice_are_stored_once(pipeline):
    pipeline.publish(*batches(8))
    pipeline.publish(*batches(8)[2:5], again=True)  # while the first are not stored yet
    pipeline.drain(11)
    pipeline.publish(*batches(8)[4:], again=True)  # and by another sink, long after
    pipeline.publish(*batches(2, first=8))
    pipeline.drain(6)
    report = pipeline.assert_exactly_once()
    assert next(t.duplicate for t in report.topics if t.topic == Topic.KERNEL) == 7


def test_batches_under_a_foreign_process_id_erase_nothing_and_the_audit_names_them(pipeline):
    pipeline.publish(*batches(3))
    other = [*batches(7, rows=50), *batches(1, first=7, rows=0)]
    for batch in other:
        batch.envelope["job"] = "other"
    pipeline.publish(*other[2:])  # the process has not published the last five yet
    pipeline.drain(9)
    empty = batches(2, first=6, rows=0)  # a sign of life, and a report of lost rows
    empty[1].envelope["dropped_before"] = 9
    pipeline.publish(*batches(3, first=3), *empty, batches(1)[0])  # and it repeats its first one
    pipeline.published[Topic.KERNEL] -= 500
    pipeline.drain(6)
    report = pipeline.audit()
    assert pipeline.query("SELECT job, count() AS n FROM {db}.kernels GROUP BY job ORDER BY job") == [
        {"job": "job", "n": 3_000}, {"job": "other", "n": 250},
    ]  # fmt: skip
    assert next(t.duplicate for t in report.topics if t.topic == Topic.KERNEL) == 1
    [conflict] = [finding for finding in report.findings if finding.kind != "windows_open"]
    assert (conflict.kind, conflict.text.split(" ")[0]) == ("conflict", "6")
    of_job = pipeline.audit("job")
    assert not [finding for finding in of_job.findings if finding.kind != "windows_open"]
    assert [row["dropped"] for row in of_job.dropped] == [9]


def test_committed_offsets_that_expired_cost_nothing(pipeline):
    pipeline.publish(*batches(8))
    pipeline.drain(8)
    pipeline.settings.sink.group += "-anew"
    pipeline.publish(*batches(2, first=8))
    assert pipeline.drain(2).counts.rows == 1_000
    pipeline.assert_exactly_once()


def test_records_that_kafka_removed_after_it_had_forgotten_the_group_stop_the_sink(pipeline):
    """A group that is away for a week is forgotten, with what it had committed; kernels are kept for three days."""
    pipeline.publish(*batches(8))
    pipeline.drain(8)
    pipeline.publish(*batches(4, first=8), again=True)
    remove_all(pipeline)
    pipeline.settings.sink.group += "-anew"
    with pytest.raises(LostRecords, match=r"removed 4 records \(8\.\.11\)"):
        pipeline.drain(1)
    pipeline.publish(*batches(2, first=12))
    pipeline.start("--instance", "1", "--topic", Topic.KERNEL, "--accept-loss", group=pipeline.settings.sink.group)
    pipeline.wait_drained()
    assert {f.kind for f in pipeline.audit().findings} == {"lost", "sequence_gap"}


def test_poison_goes_to_the_dead_letters_and_the_rest_is_stored(pipeline):
    head = pipeline.codec.encode(any_batch(Topic.KERNEL, 5, process_id(0), 0))[:5]  # with the id of the schema
    garbage = head + b" this is not Avro"
    backwards = any_batch(Topic.STEP, 5, process_id(0), 0)
    backwards.columns["duration_ns"][3] = -1
    far = any_batch(Topic.KERNEL, 5, process_id(0), 1)
    far.columns["start_ns"][-1] = 1 << 62
    pipeline.publish(*batches(1))
    pipeline.raw(Topic.KERNEL, process_id(0), garbage)
    pipeline.raw(Topic.KERNEL, process_id(0), None)
    pipeline.publish(far, backwards, again=True)
    nameless = any_batch(Topic.STRAGGLER, 5, process_id(0), 0)
    nameless.columns["severity"][2] = 4
    pipeline.publish(nameless, again=True)
    pipeline.publish(*batches(1, first=2), any_batch(Topic.STEP, 5, process_id(0), 1))
    pipeline.drain(7, [Topic.KERNEL, Topic.STEP, Topic.STRAGGLER])
    report = pipeline.assert_exactly_once()
    assert {t.topic: t.dead for t in report.topics if t.dead} == {
        Topic.KERNEL: 3,
        Topic.STEP: 1,
        Topic.STRAGGLER: 1,
    }
    dead_letters = pipeline.dead_letters(Topic.KERNEL, 3)
    headers = [dict(record.headers()) for record in dead_letters]
    assert [h["drumline.error.code"].decode() for h in headers] == ["BadEnvelope", "BadFrame", "OutOfBounds"]
    assert dead_letters[0].value() == garbage
    assert dead_letters[0].key().decode() == process_id(0)
    assert [int(h["drumline.origin.offset"]) for h in headers] == [1, 2, 3]
    assert b"start_ns" in headers[2]["drumline.error.text"]
    [step] = pipeline.dead_letters(Topic.STEP, 1)
    assert b"duration_ns" in dict(step.headers())["drumline.error.text"]
    [verdicts] = pipeline.dead_letters(Topic.STRAGGLER, 1)
    assert b"severity" in dict(verdicts.headers())["drumline.error.text"]


def test_a_flood_of_poison_stops_no_other_job(pipeline, monkeypatch):
    pipeline.publish(*batches(3))
    for i in range(40):
        pipeline.raw(Topic.KERNEL, process_id(9), b"poison %d" % i)
    pipeline.publish(*batches(3, first=3), *batches(3, topic=Topic.STEP))
    monkeypatch.setattr(intake, "FLOOD_RUN", 20)
    sink = pipeline.drain(49, [Topic.KERNEL, Topic.STEP])
    assert (sink.counts.dead_letters, sink.counts.rows) == (40, 9 * 500)
    pipeline.assert_exactly_once()


@pytest.mark.parametrize("running", [True, False])
def test_a_recreated_topic_is_read_from_its_start(pipeline, running):
    pipeline.publish(*batches(6))
    if running:
        pipeline.start("--instance", "1", flush_s=0.05)
        pipeline.wait_drained()
    else:
        pipeline.drain(6)
    admin = AdminClient({"bootstrap.servers": pipeline.settings.bootstrap})
    admin.delete_topics([Topic.KERNEL])[Topic.KERNEL].result(WAIT_S)
    until = time.monotonic() + WAIT_S
    while Topic.KERNEL in admin.list_topics().topics:
        assert time.monotonic() < until
        time.sleep(0.1)
    pipeline.create_topics()
    pipeline.publish(*batches(6, process=1))
    if running:
        pipeline.wait_drained()
    else:
        pipeline.drain(6)
    pipeline.assert_exactly_once()


def test_newest_window_wins(pipeline):
    for revision, launches in enumerate((10, 30, 20)):
        window = any_batch(Topic.KERNEL_FREQUENCY, 1, process_id(0), revision)
        window.envelope["revision"] = revision
        window.columns["name"][:] = 0
        window.columns["launches"][:] = launches
        pipeline.publish(window)
    pipeline.drain(3, [Topic.KERNEL_FREQUENCY])
    [row] = pipeline.query("SELECT revision, launches FROM {db}.kernel_frequency")
    assert row == {"revision": 2, "launches": 20}


def test_the_insert_is_one_block(pipeline):
    """100,000 rows in one range end as one part per day: what the deduplication token needs."""
    pipeline.publish(*batches(25, rows=4_000))
    pipeline.settings.sink.flush_rows = 100_000
    sink = pipeline.sink(lambda s: s.counts.rows == 100_000)
    sink.run()
    assert sink.counts.ranges == 1
    parts = pipeline.query(
        "SELECT name, rows FROM system.parts WHERE database = '{db}' AND table = 'kernels' AND active"
    )
    assert sum(part["rows"] for part in parts) == 100_000
    days = pipeline.query("SELECT uniqExact(toDate(start)) AS n FROM {db}.kernels")[0]["n"]
    assert len(parts) == days


def test_declared_tables_are_the_migrated_ones(pipeline):
    read = pipeline.query(
        "SELECT table, name, type FROM system.columns WHERE database = '{db}' AND default_kind IN ('', 'DEFAULT') "
        "ORDER BY position"
    )
    for stored in TABLES:
        actual = [(column.name, column.type) for column in stored.columns]
        assert [(row["name"], row["type"]) for row in read if row["table"] == stored.target] == actual
    assert table(Topic.KERNEL).name == "kernels"
