"""Rows that ClickHouse does not take: their record becomes a dead letter, the others are stored once."""

import pytest
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.clickhouse.client import INSERT_SETTINGS
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.schemas.topics import Topic
from drumline.sinks import rejected_ranges
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.kafka.consumer import SinkConsumer
from drumline.sinks.kafka.dead_letters import DeadLetterProducer
from drumline.sinks.ranges import failed_insert as rejection
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.rejected_ranges import RejectedRanges

pytestmark = pytest.mark.stack
REJECTED = 7
OUT_OF_MEMORY = ErrorCode.MEMORY_LIMIT_EXCEEDED


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


class Killed(BaseException):
    pass


STEPS = (
    (SinkConsumer, "commit"),
    (RangeWriter, "insert_rows"),
    (RangeWriter, "insert_ledger"),
    (PartitionState, "split"),
    (rejected_ranges, "read_again"),
    (DeadLetterProducer, "send"),
)
#: Steps that a sink takes in this order, with others between them; behind the last one it is killed.
DEATHS = (
    ("insert_rows",),
    ("split", "commit"),
    ("read_again", "send"),
    ("read_again", "send", "commit"),
    ("insert_ledger",),
)


def live(pipeline, monkeypatch, records, *steps):
    """Run a sink until the ledger has so many records; return True if it was killed behind the last of the steps."""
    left = list(steps)

    def mortal(name, work):
        def step(*arguments):
            reached = left[:1] == [name] and left.pop(0) and not left
            try:
                return work(*arguments)
            finally:
                if reached:  # even if the step failed
                    raise Killed

        return step

    with monkeypatch.context() as deadly:
        for owner, name in STEPS:
            deadly.setattr(owner, name, mortal(name, getattr(owner, name)))
        pipeline.settings.instance, pipeline.settings.sink.flush_s = "1", 0.3
        try:
            pipeline.sink(lambda _: pipeline.ledger() == records).run()
        except Killed:
            return True
    return False


def test_the_record_is_a_dead_letter_and_the_others_are_stored_once_whatever_is_killed(pipeline, monkeypatch):
    monkeypatch.setattr("drumline.sinks.ranges.failed_insert.IN_FLIGHT_S", 0.0)
    table = f"{pipeline.settings.clickhouse.database}.kernels"
    pipeline.client().command(f"ALTER TABLE {table} ADD CONSTRAINT ranks CHECK rank != {REJECTED}")
    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(0), n) for n in range(12)))
    rejected = any_batch(Topic.KERNEL, 100, process_id(0), 12)
    rejected.envelope["rank"] = REJECTED
    pipeline.publish(rejected, again=True)
    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(0), n) for n in range(13, 16)))
    for death in DEATHS:
        assert live(pipeline, monkeypatch, 16, *death), death
    assert not live(pipeline, monkeypatch, 16)
    pipeline.assert_exactly_once()
    message = pipeline.dead_letters(Topic.KERNEL, 1)[0]
    headers = dict(message.headers())
    assert headers["drumline.error.code"] == b"ClickHouseRejected"
    assert b"code 469 (VIOLATED_CONSTRAINT)" in headers["drumline.error.text"]
    assert message.value() == pipeline.codec.encode(rejected)


def test_a_rollup_gets_its_rows_though_the_server_lacked_memory_for_them_at_first(pipeline, monkeypatch):
    """A view fails as one without memory does, once the kernels are stored; `ranks_per_second` comes behind it."""
    database = pipeline.settings.clickhouse.database
    client = pipeline.client()
    client.command(f"CREATE TABLE {database}.full (n UInt8) ENGINE = MergeTree ORDER BY n")
    client.command(f"INSERT INTO {database}.full VALUES (1)")
    monkeypatch.setitem(INSERT_SETTINGS, "allow_custom_error_code_in_throwif", 1)
    client.command(
        f"CREATE MATERIALIZED VIEW {database}.aaa TO {database}.full AS SELECT 1 AS n FROM {database}.kernels "
        f"WHERE throwIf((SELECT count() FROM {database}.full) > 0, 'no memory', {OUT_OF_MEMORY:d}::Int16)",
        settings={"allow_custom_error_code_in_throwif": 1},
    )
    monkeypatch.setattr(rejection, "LARGE_BLOCK", 1)
    pipeline.publish(*(any_batch(Topic.KERNEL, 100, process_id(0), n) for n in range(4)))
    repeated, work = [], RejectedRanges._defer

    def defer(*arguments):
        repeated.append(client.query(f"SELECT count() FROM {database}.kernels").first_row[0])
        client.command(f"TRUNCATE TABLE {database}.full")
        work(*arguments)

    monkeypatch.setattr(RejectedRanges, "_defer", defer)
    pipeline.sink(lambda _: pipeline.ledger() == 4).run()
    assert repeated == [400]
    pipeline.assert_exactly_once()


@pytest.mark.long
def test_a_range_too_large_for_the_servers_memory_is_stored_in_pieces(pipeline, monkeypatch):
    pipeline.publish(*(any_batch(Topic.KERNEL, 4_000, process_id(0), n) for n in range(40)))
    monkeypatch.setitem(INSERT_SETTINGS, "max_memory_usage", 32_000_000)
    work, split = PartitionState.split, []
    monkeypatch.setattr(PartitionState, "split", lambda *arguments: split.append(arguments) or work(*arguments))
    pipeline.settings.sink.flush_rows, pipeline.settings.sink.flush_s = 160_000, 10.0
    sink = pipeline.sink(lambda _: pipeline.ledger() == 40)
    sink.run()
    assert len(split) == 1
    assert sink.counts.dead_letters == sink.counts.retries == 0
    pipeline.assert_exactly_once()
