"""A compacted ledger: Kafka has removed the records, yet duplicates and damage are found as before."""

import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from support.labs.sink import NOW_NS, Pipeline, any_batch, process_id

from drumline.infra.kafka.config import admin_config
from drumline.schemas.topics import Topic
from drumline.sinks.audit.kafka_side import KafkaFacts
from drumline.sinks.ledger_runs import LedgerCompaction, NotTheSame

pytestmark = pytest.mark.stack
BATCHES, ROWS, PROCESSES = 6, 50, 3


@pytest.fixture
def pipeline(clean_stack, environment_of):
    """Batches of three processes, stored and then removed from Kafka; one of a fourth process comes later."""
    created = Pipeline(clean_stack, environment_of(clean_stack))
    for sequence in range(BATCHES):
        created.publish(*(kernels(number, sequence) for number in range(PROCESSES)))
    created.drain(BATCHES * PROCESSES)
    forget(created)
    yield created
    created.stop()


def kernels(number, sequence, seed=0):
    return any_batch(Topic.KERNEL, ROWS, process_id(number), sequence, seed)


def forget(pipeline):
    """Kafka removes all records that are stored."""
    facts = of_kafka(pipeline)
    ends = [TopicPartition(f.topic, f.partition, f.committed) for f in facts if f.committed > f.low]
    admin = AdminClient(admin_config(pipeline.settings, "test"))
    for done in admin.delete_records(ends).values():
        done.result(60)


def of_kafka(pipeline):
    facts = KafkaFacts(pipeline.settings)
    try:
        return facts.partitions([Topic.KERNEL])
    finally:
        facts.close()


def compaction(pipeline, before_ms=None):
    now_ms = int(time.time() * 1000) + 1
    return LedgerCompaction(pipeline.kept_client, pipeline.settings.clickhouse.database, before_ms or now_ms)


def compact(pipeline, **options):
    return list(compaction(pipeline, **options).run(of_kafka(pipeline)))


def change(pipeline, sql):
    pipeline.kept_client.command(
        sql.replace("{db}", pipeline.settings.clickhouse.database), settings={"mutations_sync": 2}
    )


def counts(pipeline):
    [row] = pipeline.query(
        "SELECT (SELECT count() FROM {db}.ledger) AS ledger, (SELECT count() FROM {db}.ledger_runs) AS runs, "
        "(SELECT count() FROM {db}.ledger_records) AS records"
    )
    return row


def kinds(pipeline):
    return {finding.kind for finding in pipeline.audit().findings} - {"windows_open"}


def test_runs_take_the_place_of_records_and_the_audit_is_as_clean_as_before(pipeline):
    logs = len({f.partition for f in of_kafka(pipeline) if f.committed})
    [done] = compact(pipeline)
    assert done.records == BATCHES * PROCESSES - logs, "the last record of each log stays"
    assert counts(pipeline) == {"ledger": logs, "runs": done.runs, "records": BATCHES * PROCESSES}
    assert done.runs <= 2 * PROCESSES, "two if the hour changed meanwhile"
    pipeline.assert_exactly_once()
    assert compact(pipeline) == [], "nothing is left"


def test_what_comes_again_is_a_duplicate_and_what_is_new_is_stored(pipeline):
    compact(pipeline)
    pipeline.publish(*(kernels(number, 1) for number in range(PROCESSES)), kernels(0, 2, seed=7), again=True)
    pipeline.publish(kernels(0, BATCHES), kernels(5, 0))
    pipeline.drain(PROCESSES + 3)
    dispositions = pipeline.query("SELECT disposition, count() AS n FROM {db}.ledger_records GROUP BY 1 ORDER BY 1")
    assert {str(row["disposition"]): row["n"] for row in dispositions} == {
        "stored": BATCHES * PROCESSES + 2, "duplicate": PROCESSES + 1,
    }  # fmt: skip
    pipeline.assert_exactly_once()


def test_records_that_kafka_has_or_that_are_not_old_stay(pipeline):
    assert compact(pipeline, before_ms=NOW_NS // 10**6 - 60_000) == []
    compact(pipeline)
    before = counts(pipeline)
    pipeline.publish(*(kernels(number, BATCHES) for number in range(PROCESSES)))
    pipeline.drain(PROCESSES)
    [*_] = compact(pipeline)  # those that were the last ones of their logs
    after = counts(pipeline)
    assert after["ledger"] == PROCESSES, "the new ones, which Kafka has"
    assert after["records"] == before["records"] + PROCESSES
    pipeline.assert_exactly_once()


MISSING = {"lost", "sequence_gap"}
#: Damage -> statement, and the findings of which there is one at least.
DAMAGE = {
    "an interval is gone": ("ALTER TABLE {db}.ledger_runs DELETE WHERE process_id = '{process}'", MISSING),
    "an interval is there twice": (
        "INSERT INTO {db}.ledger_runs SELECT * FROM {db}.ledger_runs WHERE process_id = '{process}'", {"doubled"},
    ),
    "a record of an interval is gone": (
        "ALTER TABLE {db}.ledger_runs UPDATE offsets = arrayPopBack(offsets), rows = arrayPopBack(rows), "
        "records = records - 1 WHERE process_id = '{process}'", MISSING,
    ),
    "an interval claims more rows": (
        "ALTER TABLE {db}.ledger_runs UPDATE rows = arrayMap(n -> n + 1, rows) WHERE process_id = '{process}'",
        {"rows_differ"},
    ),
    "a row is gone": (
        "ALTER TABLE {db}.kernels DELETE WHERE process_id = '{process}' AND _row = 7", {"rows_differ"},
    ),
}  # fmt: skip


def test_the_audit_finds_damage_in_what_was_compacted(pipeline):
    compact(pipeline)
    change(pipeline, "CREATE TABLE {db}.whole ENGINE = Memory AS SELECT * FROM {db}.ledger_runs")
    assert kinds(pipeline) == set()
    for damage, (sql, expected) in DAMAGE.items():
        change(pipeline, sql.replace("{process}", process_id(0)))
        assert expected & kinds(pipeline), damage
        change(pipeline, "TRUNCATE TABLE {db}.ledger_runs")
        change(pipeline, "INSERT INTO {db}.ledger_runs SELECT * FROM {db}.whole SETTINGS insert_deduplicate = 0")


def test_a_compaction_that_was_interrupted_is_completed_by_the_next_one(pipeline, monkeypatch):
    def half():
        with monkeypatch.context() as halted:
            halted.setattr(LedgerCompaction, "_delete", lambda self, topic, parts: None)
            compact(pipeline)

    half()
    assert "doubled" in kinds(pipeline), "meanwhile records are in both"
    change(pipeline, f"ALTER TABLE {{db}}.ledger_runs DELETE WHERE process_id = '{process_id(0)}'")
    half()  # a part had been inserted
    change(pipeline, f"ALTER TABLE {{db}}.ledger DELETE WHERE process_id = '{process_id(1)}' AND sequence < 3")
    compact(pipeline)  # a part had been deleted
    assert counts(pipeline)["records"] == BATCHES * PROCESSES
    pipeline.assert_exactly_once()


def test_runs_that_are_not_the_ledgers_records_delete_nothing(pipeline, monkeypatch):
    with monkeypatch.context() as halted:
        halted.setattr(LedgerCompaction, "_delete", lambda self, topic, parts: None)
        compact(pipeline)
    change(
        pipeline,
        f"ALTER TABLE {{db}}.ledger_runs UPDATE rows = arrayMap(n -> n + 1, rows) WHERE process_id = '{process_id(0)}'",
    )
    before = counts(pipeline)["ledger"]
    with pytest.raises(NotTheSame):
        compact(pipeline)
    assert counts(pipeline)["ledger"] == before
