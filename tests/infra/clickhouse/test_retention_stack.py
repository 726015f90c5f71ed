"""Retention counts from when Kafka got a row: what happened long ago is kept as long as what is new."""

import time
from types import SimpleNamespace

import pytest
from support import drumline_program
from support.labs.sink import Pipeline, any_batch, process_id
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse.retention import RETENTION_CLOCK
from drumline.infra.telemetry import metrics
from drumline.schemas.model import has_schema, model
from drumline.schemas.topics import DAY_MS, RAW_TOPICS, WINDOW_TOPICS, Topic, TopicSpec
from drumline.sinks import expired as sinks_expired

pytestmark = pytest.mark.stack
#: More than any table keeps rows by default.
AGO_NS = 400 * 86_400 * 10**9
#: A process is one row, other batches have 50.
ROWS = {Topic.PROCESS: 1}
#: Those of rows that are published here; evaluations are of verdicts.
ROLLUPS = {name for name, clock in RETENTION_CLOCK.items() if clock == "last_published"} - {"evaluations"}


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def long_ago(topic):
    """A batch of rows that happened 400 days ago."""
    batch, shape = any_batch(topic, ROWS.get(topic, 50), process_id(0), 0), model(topic)
    for name in shape.topic_fields:
        if name.endswith(("start_ns", "end_ns", "time_ns")) and name in batch.envelope:
            batch.envelope[name] -= AGO_NS
    batch.envelope["base_time_ns"] -= AGO_NS
    for column in shape.columns:
        if column.base:
            batch.columns[column.name] = batch.columns[column.name] - AGO_NS
    return batch


def change(pipeline, sql):
    database = pipeline.settings.clickhouse.database
    pipeline.kept_client.command(sql.replace("{db}", database), settings={"mutations_sync": 2})


def optimize(pipeline):
    for name in RETENTION_CLOCK:
        change(pipeline, f"OPTIMIZE TABLE {{db}}.{name} FINAL")


def filled(pipeline):
    """The tables that have rows."""
    counts = (f"SELECT '{name}' AS name, count() AS n FROM {{db}}.{name}" for name in RETENTION_CLOCK)
    return {row["name"] for row in pipeline.query(" UNION ALL ".join(counts)) if row["n"]}


def expired(topic, reason):
    return metrics.SINK_EXPIRED.labels(topic.value, reason)._value.get()


def test_rows_of_400_days_ago_that_arrive_now_stay_in_every_table_and_rollup(pipeline):
    topics = [topic for topic in (*RAW_TOPICS, *WINDOW_TOPICS) if has_schema(topic)]
    pipeline.publish(*map(long_ago, topics))
    pipeline.drain(len(topics), topics)
    stored = filled(pipeline)
    assert stored >= ROLLUPS
    optimize(pipeline)
    assert filled(pipeline) == stored
    report = pipeline.audit()
    of_windows = ("windows_differ", "windows_open")  # the windows are not those of the kernels
    assert [finding for finding in report.findings if finding.kind not in of_windows] == []
    accounts = {account.topic: (account.rows_stored, account.rows_expired) for account in report.topics}
    for topic in set(topics) - WINDOW_TOPICS:
        assert accounts[topic] == (ROWS.get(topic, 50), 0)
    assert all(accounts[topic][0] and not accounts[topic][1] for topic in WINDOW_TOPICS), "some replaced others"
    # This test can fail: the server does delete what a table's TTL says.
    change(pipeline, "ALTER TABLE {db}.kernels MODIFY TTL toDateTime(start) + INTERVAL 7 DAY")
    optimize(pipeline)
    assert filled(pipeline) == stored - {"kernels"}


@pytest.fixture
def producers_time(monkeypatch):
    """Topics, made after this, that take the producer's time for when Kafka got a record, and keep it for ever."""
    declared, changed = TopicSpec.config.fget, {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    monkeypatch.setattr(TopicSpec, "config", property(lambda spec: declared(spec) | changed))


def produce_of(pipeline, days, *batches):
    """Publish by a producer whose clock is so many days behind."""
    ago_ms = round(time.time() * 1_000) - days * DAY_MS
    for batch in batches:
        pipeline.producer.produce(batch.topic, key=process_id(0), value=pipeline.codec.encode(batch), timestamp=ago_ms)
    assert pipeline.producer.flush(WAIT_S) == 0


def test_rows_that_kafka_got_before_the_retention_are_not_stored_but_expired_in_ledger_metric_and_audit(
    producers_time, pipeline, capsys
):
    """A topic has the producer's time, and its clock is behind; or a sink that was down for longer."""
    topics = [Topic.KERNEL, Topic.KERNEL_FREQUENCY]
    batches = [*map(long_ago, topics)]
    produce_of(pipeline, 100, *batches)
    before = {topic: expired(topic, "arrival") for topic in topics}
    pipeline.drain(len(topics), topics)
    assert {topic: expired(topic, "arrival") - before[topic] for topic in topics} == dict.fromkeys(topics, 50)
    assert "rows are older than the retention of kernels" in "".join(capsys.readouterr())
    assert filled(pipeline) == {"ledger", "records_per_minute"}, "no row was inserted, and no rollup counts one"
    [kept] = pipeline.query("SELECT groupUniqArray(disposition) AS of, sum(rows) AS n FROM {db}.ledger")
    assert (kept["of"], kept["n"]) == (["expired"], 100)
    report = pipeline.audit()
    assert report.findings == []
    accounts = {a.topic: (a.expired, a.rows_expired) for a in report.topics if a.records}
    assert accounts == dict.fromkeys(topics, (1, 50))
    audit = drumline_program.run("audit", environment=pipeline.environment)
    last = "100 rows expired (older than retention); of the rest nothing is lost or doubled"
    assert (audit.returncode, audit.stdout.splitlines()[-1]) == (0, last)
    pipeline.publish(batches[0])  # nothing is stored of it: no duplicate
    pipeline.drain(1)
    [account] = [a for a in pipeline.audit().topics if a.topic == Topic.KERNEL]
    assert (account.rows_stored, account.rows_expired, account.duplicate) == (50, 50, 0)


def test_a_sink_whose_clock_is_ahead_stores_all(pipeline, monkeypatch):
    """The server deletes by its own clock; a record that is left out would be lost."""
    ahead_ns = time.time_ns() + AGO_NS
    monkeypatch.setattr(sinks_expired, "time", SimpleNamespace(time_ns=lambda: ahead_ns))
    pipeline.publish(any_batch(Topic.KERNEL, 50, process_id(0), 0))
    pipeline.drain(1)
    assert [a.rows_stored for a in pipeline.audit().topics if a.records] == [50]


def test_batches_that_are_published_again_after_their_rows_expired_are_counted(pipeline):
    """As out of an archive, into the database that has stored them before."""
    batches = [any_batch(Topic.KERNEL, 50, process_id(0), sequence) for sequence in (0, 1)]
    pipeline.publish(*batches)
    pipeline.drain(2)
    change(pipeline, "ALTER TABLE {db}.ledger UPDATE published = published - INTERVAL 20 DAY WHERE sequence = 0")
    before = expired(Topic.KERNEL, "repeated")
    pipeline.publish(*batches, again=True)
    pipeline.drain(2)
    assert expired(Topic.KERNEL, "repeated") - before == 50


def test_records_that_kafka_has_for_longer_than_the_ledger_are_not_lost(producers_time, pipeline):
    """As those of a compacted topic after a year."""
    produce_of(pipeline, 400, long_ago(Topic.PROCESS))
    pipeline.drain(1, [Topic.PROCESS])
    optimize(pipeline)
    assert pipeline.ledger() == 0
    pipeline.publish(any_batch(Topic.PROCESS, 1, process_id(1), 0))
    pipeline.drain(1, [Topic.PROCESS])
    assert pipeline.ledger() == 1
    assert pipeline.audit().findings == []
