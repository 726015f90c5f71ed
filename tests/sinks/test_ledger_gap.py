"""A sink whose ClickHouse lacks what its group has committed as stored: another server, or an emptied one."""

from types import SimpleNamespace

import pytest
from support import migrated_database
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings
from drumline.infra.config.settings import Settings
from drumline.schemas.topics import Topic
from drumline.sinks import ledger_gap
from drumline.sinks.errors import LostRecords
from drumline.sinks.ledger_gap import DAY_MS, is_behind, resolve_gaps
from drumline.sinks.ranges.intent import write_done
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.resume import resume_from
from drumline.sinks.tables.tables import table


def batches(count, first=0):
    return [any_batch(Topic.KERNEL, 10, process_id(0), first + i, 0) for i in range(count)]


def state(topic_id="id", stored_before=9):
    return PartitionState(table(Topic.KERNEL), 0, topic_id, 9, stored_before=stored_before)


def test_only_what_a_sink_has_committed_as_stored_must_be_in_the_ledger():
    by_sink, by_hand = state(stored_before=0), state(stored_before=0)
    resume_from(by_sink, 20, write_done("id"), accept_loss=False)
    resume_from(by_hand, 20, "", accept_loss=False)
    assert (by_sink.stored_before, by_hand.stored_before) == (20, 0)
    assert is_behind(by_sink, 19, accept_loss=False)
    assert not is_behind(by_sink, 20, accept_loss=False)
    assert not is_behind(by_hand, 0, accept_loss=False)


def test_a_log_that_continues_after_an_accepted_loss_has_nothing_stored_at_first():
    assert not is_behind(state("id~9"), 0, accept_loss=False)
    assert is_behind(state("id~8"), 0, accept_loss=False)


@pytest.mark.parametrize(("stored", "accept_loss", "behind"), [(0, False, True), (5, False, False), (5, True, True)])
def test_compaction_may_have_left_nothing_between_the_ledgers_end_and_the_commit(stored, accept_loss, behind):
    compacted = PartitionState(table(Topic.PROCESS), 0, "id", 9, compacted=True, stored_before=9)
    assert is_behind(compacted, stored, accept_loss=accept_loss) is behind


@pytest.fixture
def kafka(monkeypatch):
    """Kafka has offsets 5 to 8; the one at 8 came two days ago."""
    monkeypatch.setattr(ledger_gap, "record_times", lambda _, offsets: dict.fromkeys(offsets, 1000 * DAY_MS))
    monkeypatch.setattr(ledger_gap.time, "time_ns", lambda: 1_002 * DAY_MS * 1_000_000)
    logs = SimpleNamespace(bounds=lambda _: (5, 9))
    return SimpleNamespace(logs=logs, reader=lambda: SimpleNamespace(close=lambda: None), accept_loss=False)


@pytest.mark.parametrize(
    ("days", "stored_before"), [(1, 9), (365, 5)], ids=["retention removed it from the ledger", "Kafka has it no more"]
)
def test_what_is_gone_in_time_is_no_gap(kafka, days, stored_before):
    settings = Settings(clickhouse=ClickHouseSettings(retention=RetentionSettings(ledger=days)))
    assert resolve_gaps(settings, kafka, None, [(state(stored_before=stored_before), 3)]) == []


@pytest.mark.parametrize("days", [0, 3])
def test_the_refusal_names_partition_group_server_and_the_ways_out(kafka, days):
    settings = Settings(clickhouse=ClickHouseSettings(retention=RetentionSettings(ledger=days), url="http://b:8123"))
    with pytest.raises(LostRecords, match=r"gpu.kernel.v1 partition 0 \(and 1 partitions more\): group drumline-sink .*"
                       r"before offset 9 .*http://b:8123 ends at 3\. .*--accept-loss.*drumline backfill"):  # fmt: skip
        resolve_gaps(settings, kafka, None, [(state(), 3), (state(), 4)])


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


@pytest.mark.stack
def test_nothing_is_inserted_into_an_emptied_server_until_that_is_accepted(pipeline):
    pipeline.publish(*batches(8))
    pipeline.drain(8)
    pipeline.publish(*batches(8), again=True)
    database = pipeline.settings.clickhouse.database
    pipeline.client().command(f"DROP DATABASE {database} SYNC")
    migrated_database.create(pipeline.settings)
    with pytest.raises(LostRecords, match="has committed all records before offset 8 as stored"):
        pipeline.drain(1)
    assert pipeline.ledger() == 0
    sink = pipeline.sink(lambda s: s.counts.records >= 16, accept_loss=True)
    sink.run()
    assert (sink.counts.records, sink.counts.rows) == (16, 80), "the repetitions are duplicates"
    pipeline.assert_exactly_once()
    pipeline.publish(*batches(2, first=8))
    pipeline.drain(2)
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_an_emptied_server_gets_the_processes_again_though_their_topic_is_compacted(pipeline):
    pipeline.publish(*(any_batch(Topic.PROCESS, 1, process_id(i), 0, i) for i in range(5)))
    pipeline.drain(5, [Topic.PROCESS])
    pipeline.client().command(f"DROP DATABASE {pipeline.settings.clickhouse.database} SYNC")
    migrated_database.create(pipeline.settings)
    with pytest.raises(LostRecords, match=r"gpu\.process\.v1 partition \d.* ends at 0"):
        pipeline.drain(1, [Topic.PROCESS])
    pipeline.sink(lambda s: s.counts.records >= 5, [Topic.PROCESS], accept_loss=True).run()
    assert pipeline.query("SELECT uniqExact(process_id) AS n FROM {db}.processes")[0]["n"] == 5
    pipeline.assert_exactly_once()


@pytest.mark.stack
def test_rows_that_the_ledger_lacks_are_not_doubled_though_loss_is_accepted(pipeline):
    pipeline.publish(*batches(8))
    pipeline.drain(8)
    pipeline.client().command(
        f"ALTER TABLE {pipeline.settings.clickhouse.database}.ledger DELETE WHERE offset >= 5",
        settings={"mutations_sync": 2},
    )
    with pytest.raises(LostRecords, match="ends at 5"):
        pipeline.drain(1)
    with pytest.raises(LostRecords, match=r"kernels has rows of records that the ledger lacks .* from _offset 5"
                       r".*set the offset of group \S+ to 8 by hand"):  # fmt: skip
        pipeline.sink(lambda _: False, accept_loss=True).run()
