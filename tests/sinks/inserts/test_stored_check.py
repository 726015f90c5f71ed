"""Ranges that waited until ClickHouse had forgotten their tokens, and a range of which compaction left nothing.

The windows are scaled down from 100,000 inserts to one or none. A kill then doubles rows where no query checks:
tests/sinks/audit/test_audit_detects_protocol_gaps.py.
"""

import re
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.client import TransientError, rows
from drumline.schemas.topics import Topic
from drumline.sinks.inserts import insert as writer
from drumline.sinks.inserts import insert_lanes
from drumline.sinks.inserts import stored_check as stored_check
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.inserts.ledger import Ledger
from drumline.sinks.inserts.stored_check import StoredRows, find_stored
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.topic_ids import topic_ids
from drumline.sinks.ranges.intent import Intent, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage
from drumline.sinks.tables.tables import TABLES, table

#: Processes that go to a partition each.
PROCESSES = (0, 1, 5)
OF_LEDGER, OF_KERNELS = ("ledger", "records_per_minute"), ("kernels", "kernels_per_minute", "ranks_per_second")


class Killed(BaseException):
    pass


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def remember(pipeline, monkeypatch, tables, tokens):
    """The tables remember so many tokens, and the sink knows."""
    monkeypatch.setattr(stored_check, "REMEMBERED", tokens)
    for name in tables:
        pipeline.client().command(
            f"ALTER TABLE {pipeline.settings.clickhouse.database}.{name} "
            f"MODIFY SETTING non_replicated_deduplication_window = {tokens}"
        )


def killed(pipeline):
    """A sink that takes in all there is at once, and dies."""
    pipeline.settings.instance, pipeline.settings.sink.flush_s = "1", 0.5
    with pytest.raises(Killed):
        pipeline.sink(lambda _: False).run()


@pytest.mark.stack
def test_rows_that_are_there_since_long_are_not_inserted_again(pipeline, monkeypatch):
    """Killed between 4 and 5."""
    remember(pipeline, monkeypatch, OF_KERNELS, 0)
    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(p), 0, p) for p in PROCESSES))
    with monkeypatch.context() as deadly:
        deadly.setattr(RangeWriter, "insert_ledger", lambda self, pending: (_ for _ in ()).throw(Killed))
        killed(pipeline)
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 1))
    pipeline.drain(len(PROCESSES) + 1)
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_a_sink_that_hears_of_its_inserts_long_after_does_not_repeat_them(pipeline, monkeypatch):
    """Cut off from ClickHouse when it had the block, while others go on."""
    remember(pipeline, monkeypatch, OF_KERNELS + OF_LEDGER, 0)
    monkeypatch.setattr(writer, "LONG_AGO_S", 0.0)
    insert, lost = writer.insert_once, set()

    def lost_answer(client, name, *block, **more):
        insert(client, name, *block, **more)
        if name.endswith((".kernels", ".ledger")) and name not in lost:
            lost.add(name)
            raise TransientError("no answer")

    monkeypatch.setattr(writer, "insert_once", lost_answer)
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 0))
    assert pipeline.drain(1).counts.retries == len(lost) == 2
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_ledger_rows_that_are_there_since_long_are_not_inserted_again(pipeline, monkeypatch):
    """Killed between 5 and 6: of three ranges ClickHouse remembers one.

    Partitions may come in several cycles: until all three are stored, the sink goes on without the commit.
    """
    monkeypatch.setattr(insert_lanes, "LANES", 1)  # the ledger and its rollup remember the same range
    remember(pipeline, monkeypatch, OF_LEDGER, 1)
    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(p), 0, p) for p in PROCESSES))
    commit, fed = SinkConsumer.commit, []

    def dies(self, commits):
        if all('"to":' in metadata for _, _, metadata, _ in commits):
            commit(self, commits)
        elif pipeline.ledger() == len(PROCESSES):
            raise Killed

    with monkeypatch.context() as deadly:
        deadly.setattr(SinkConsumer, "commit", dies)
        killed(pipeline)
    find_range = Ledger.find_range
    monkeypatch.setattr(Ledger, "find_range", lambda *of: fed.append(find_range(*of)) or fed[-1])
    pipeline.publish(any_batch(Topic.KERNEL, 100, process_id(0), 1))
    pipeline.drain(1)
    assert len({tables.later for tables in fed}) == len(fed) == len(PROCESSES), "parts of their own: one is remembered"
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_the_stored_rows_and_the_later_parts_of_a_table_are_found(pipeline):
    client, name = pipeline.client(), f"{pipeline.settings.clickhouse.database}.looked_at"
    client.command(f"CREATE TABLE {name} (day UInt8, of UInt64) ENGINE = MergeTree PARTITION BY day ORDER BY of")
    for n in range(4):
        client.command(f"INSERT INTO {name} SELECT number, {n} FROM numbers(2)")  # two parts
    assert [find_stored(client, name, "of = {of:UInt64}", {"of": n}) for n in (0, 2, 3, 4)] == [
        StoredRows(2, 7), StoredRows(2, 3), StoredRows(2, 1), StoredRows(0, 0),
    ]  # fmt: skip
    client.command(f"OPTIMIZE TABLE {name} FINAL")
    assert find_stored(client, name, "of = 3", {}).later >= 7, "as old as the oldest that it is merged with"


@pytest.mark.stack
def test_tables_remember_more_tokens_than_the_sink_relies_on(pipeline):
    tables = pipeline.query("SELECT name, engine_full FROM system.tables WHERE database = '{db}'")
    windows = {
        row["name"]: int(stated[1])
        for row in tables
        if (stated := re.search(r"non_replicated_deduplication_window = (\d+)", row["engine_full"]))
    }
    assert set(windows) >= {"ledger", *OF_LEDGER, *OF_KERNELS, *(stored.target for stored in TABLES)}
    assert min(windows.values()) > stored_check.REMEMBERED


@pytest.mark.parametrize(
    ("stored", "wanted", "done"),
    [
        (StoredRows(10, 10**6), 10, True),
        (StoredRows(10, 5), 10, False),  # the token is known; what is filled from the table may lack it
        (StoredRows(9, 10**6), 10, False),  # the engine died within the insert
        (StoredRows(0, 0), 10, False),
    ],
)
def test_what_was_inserted_is_inserted_again_unless_the_token_may_be_forgotten(stored, wanted, done):
    assert stored.done(wanted) is done


def test_a_range_without_records_is_no_insert():
    """A missing client raises an error."""
    pending = PendingRange(
        table(Topic.PROCESS), OffsetRange("id", 0, 0, 2), [], RangeStage.INTENT_COMMITTED, replay=True
    )
    writer_ = RangeWriter(None, "gpu", KernelNames())
    assert writer_.insert_rows(pending) == 0
    writer_.insert_ledger(pending)


@pytest.mark.stack
def test_a_range_with_a_committed_intent_and_no_records_left_does_not_stop_the_rest(pipeline):
    """As compaction leaves it: offsets without records. Here those of an aborted transaction."""
    settings = pipeline.settings
    settings.instance = ""
    aborted = Producer({"bootstrap.servers": settings.bootstrap, "transactional.id": "gone"})
    aborted.init_transactions(30)
    aborted.begin_transaction()
    for _ in range(3):
        aborted.produce(Topic.PROCESS, key="gone", value=b"gone", partition=0)
    aborted.flush(20)
    aborted.abort_transaction(30)
    until = time.monotonic() + WAIT_S
    sink = pipeline.sink(lambda sink: sink.counts.replays == 1 or time.monotonic() > until, [Topic.PROCESS])
    number = topic_ids(sink.kafka._admin, settings, [Topic.PROCESS])[Topic.PROCESS]
    stated = write_intent(Intent(OffsetRange(number, 0, 0, 2), 3, 3))
    group = Consumer({"bootstrap.servers": settings.bootstrap, "group.id": settings.sink.group})
    group.commit(offsets=[TopicPartition(Topic.PROCESS, 0, 0, stated)], asynchronous=False)
    group.close()
    pipeline.producer.produce(
        Topic.PROCESS, key="left", partition=0, value=pipeline.codec.encode(any_batch(Topic.PROCESS, 1, "left", 0))
    )
    assert pipeline.producer.flush(20) == 0
    sink.run()
    assert sink.counts.replays == 1
    pipeline.drain(1, [Topic.PROCESS])
    assert rows(pipeline.client(), f"SELECT count() AS n FROM {settings.clickhouse.database}.processes") == [{"n": 1}]
