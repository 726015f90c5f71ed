"""Tables that a user made replicated, on two engines and a Keeper: migrations, the sink, and a replica that lags.

Parts are not fetched here (tests/support/replicated/process.py): all that goes through Keeper is real.
"""

import re

import pytest
from support.labs import sink
from support.labs.sink import Pipeline, any_batch, process_id
from support.migrated_database import run, statements
from support.newer_release import NAME, newer_migrations
from support.replicated.engine import replicating_engine
from support.replicated.keeper import keeper
from support.replicated.process import unsupported

from drumline.infra.clickhouse import migrate as module
from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.clickhouse.migrate import migrate
from drumline.infra.clickhouse.migration_lock import MigrationConflict
from drumline.infra.localstack.ephemeral import environment
from drumline.schemas.topics import Topic
from drumline.sinks.errors import LostRecords
from drumline.sinks.inserts.insert import RangeWriter

pytestmark = [pytest.mark.stack, pytest.mark.cluster, pytest.mark.timeout(900)]
TOPICS = [Topic.KERNEL, Topic.MEMCPY, Topic.STEP, Topic.PROCESS]


class Killed(BaseException):
    pass


@pytest.fixture
def replicas(clean_stack, tmp_path):
    if reason := unsupported():
        pytest.skip(reason)
    with (
        keeper(tmp_path / "keeper", clean_stack.local.cache) as port,
        replicating_engine(clean_stack, tmp_path / "a", port, "a") as first,
        replicating_engine(clean_stack, tmp_path / "b", port, "b") as second,
    ):
        yield first, second


@pytest.fixture
def newer(monkeypatch, tmp_path):
    """Call it: migrations are those of the next release. One of them adds a table, and makes one anew."""
    (tmp_path / "migrations").mkdir()
    files = newer_migrations(tmp_path / "migrations")
    return lambda: monkeypatch.setattr(module, "migrations", lambda: files)


def unreplicated(client):
    """Tables with rows that are not replicated, but the journal, which is not to be."""
    sql = (
        "SELECT name FROM system.tables WHERE database = 'gpu' AND engine LIKE '%MergeTree' "
        "AND engine NOT LIKE 'Replicated%' AND name != 'schema_migrations' ORDER BY name"
    )
    return [str(row["name"]) for row in rows(client, sql)]


def attach(client, name, form):
    command(client, f"DETACH TABLE gpu.{name}")
    command(client, f"ATTACH TABLE gpu.{name} AS {form}")


def convert(client, names):
    """As ClickHouse's manual has it."""
    for name in names:
        attach(client, name, "REPLICATED")
        command(client, f"SYSTEM RESTORE REPLICA gpu.{name}")


def columns(client):
    """Columns of all tables and views, and what rows are kept for how long."""
    shown = "table, name, type, position, default_expression, comment, compression_codec"
    times = "SELECT name, extract(engine_full, ' TTL (.*?) SETTINGS') AS ttl FROM system.tables"
    return (
        rows(client, f"SELECT {shown} FROM system.columns WHERE database = 'gpu' ORDER BY ALL"),
        rows(client, f"{times} WHERE database = 'gpu' ORDER BY ALL"),
    )


def test_a_schema_that_was_made_replicated_is_migrated_by_the_next_release(replicas, newer, monkeypatch):
    first, second = replicas
    a, b = connect(first), connect(second)
    migrate(a, first)
    steps = "INSERT INTO gpu.steps (job, run, step, start) SELECT 'before', 'r', number, now64(9) FROM numbers(50)"
    command(a, steps, settings={"async_insert": 0})

    tables = unreplicated(a)
    convert(a, tables[1:])
    attach(a, tables[0], "REPLICATED")
    with pytest.raises(MigrationConflict, match=f"read-only: {tables[0]}\\. .*RESTORE REPLICA"):
        migrate(a, first)
    command(a, f"SYSTEM RESTORE REPLICA gpu.{tables[0]}")
    convert(a, ["schema_migrations"])
    with pytest.raises(MigrationConflict, match="each server needs a journal of its own"):
        migrate(a, first)
    attach(a, "schema_migrations", "NOT REPLICATED")

    run(b, "gpu", statements(a, "gpu"))
    with pytest.raises(MigrationConflict, match="an empty schema_migrations"):
        migrate(b, second)
    for row in rows(a, "SELECT version, name, checksum FROM gpu.schema_migrations ORDER BY version"):
        values = "SELECT {version:UInt32}, {name:String}, {checksum:String}"
        command(b, f"INSERT INTO gpu.schema_migrations (version, name, checksum) {values}", row)

    newer()
    with pytest.raises(MigrationConflict, match=r"gpu\.alert_limits_versions is to be re-created"):
        migrate(a, first)
    for client, name in ((a, "a"), (b, "b")):
        attach(client, "alert_limits_versions", "NOT REPLICATED")
        command(client, f"SYSTEM DROP REPLICA '{name}' FROM ZKPATH '/clickhouse/tables/1/gpu/alert_limits_versions'")
    for client, settings in ((a, first), (b, second)):
        done = migrate(client, settings)
        assert [step for step in done if re.match(r"\d{4}_", step)] == [NAME]
    added = unreplicated(a)
    assert added == unreplicated(b) == ["alert_limits_versions", "step_counts"]
    convert(a, added)
    for name in added:
        command(b, f"DROP TABLE gpu.{name} SYNC")
    created = [text for text in statements(a, "gpu") if text.split("{database}.")[1].split()[0] in added]
    run(b, "gpu", created)
    for client, settings in ((a, first), (b, second)):
        assert migrate(client, settings) == [f"{name}: remember 100000 tokens for 7 days" for name in added]
        assert migrate(client, settings) == []
    assert columns(a) == columns(b)
    assert unreplicated(a) == unreplicated(b) == []
    stored = "SELECT (SELECT count() FROM gpu.steps) AS rows, (SELECT sum(steps) FROM gpu.step_counts) AS filled"
    assert rows(a, stored) == [{"rows": 50, "filled": 50}]
    for name in ("steps", "steps_per_second"):
        command(a, f"TRUNCATE TABLE gpu.{name}")  # the audit would miss them in Kafka

    monkeypatch.setattr(sink.migrated_database, "create", lambda settings: None)
    pipeline = Pipeline(first, environment(first))
    batches = [any_batch(topic, 1 if topic == Topic.PROCESS else 100, process_id(0), 0) for topic in TOPICS]
    pipeline.publish(*batches)
    with monkeypatch.context() as deadly:
        deadly.setattr(RangeWriter, "insert_ledger", lambda self, pending: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            pipeline.drain(len(batches), TOPICS)
    pipeline.publish(*batches, again=True)
    pipeline.drain(2 * len(batches), TOPICS)
    report = pipeline.assert_exactly_once()
    assert report.rollups["kernels_per_minute"] == 100

    lagging = Pipeline(second, environment(second))  # of the same group
    with pytest.raises(LostRecords, match=r"has committed all records before offset 2 as stored"):
        lagging.drain(1, TOPICS)
    assert lagging.ledger() == 0


def test_a_server_that_makes_every_table_replicated_is_refused_at_once(replicas, monkeypatch):
    first, _ = replicas
    client = connect(first)

    def made_replicated(of, sql, *more, **options):
        return command(of, sql.replace("ENGINE = MergeTree", "ENGINE = ReplicatedMergeTree"), *more, **options)

    monkeypatch.setattr(module, "command", made_replicated)
    with pytest.raises(MigrationConflict, match="makes every table replicated cannot be migrated"):
        migrate(client, first)
    assert [row["name"] for row in rows(client, "SHOW TABLES FROM gpu")] == ["schema_migrations"]
