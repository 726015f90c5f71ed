"""Migrations: applied once, never changed, safe to repeat; and what exactly-once needs of every table."""

import re
import socket
import subprocess
import threading

import pytest
from support import drumline_program, migrated_database
from support.newer_release import NAME, newer_migrations
from support.wait_limit import WAIT_S

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse import migrate as module
from drumline.infra.clickhouse.migrate import Applied, Migration, migrate, migrated_tables, migrations, pending
from drumline.infra.clickhouse.migration_lock import MigrationConflict
from drumline.infra.config.clickhouse_settings import ClickHouseSettings, RetentionSettings, TieringSettings
from drumline.infra.localstack.clickhouse.config import prepare_engine
from drumline.infra.localstack.clickhouse.engine import answers, wait_until
from drumline.infra.localstack.ephemeral import ephemeral_settings

FILES = [Migration(1, "a", "SELECT 1;"), Migration(2, "b", "SELECT 2;")]


def applied(files):
    return {m.version: Applied(m.name, m.checksum) for m in files}


def test_what_is_applied_is_left_out():
    assert pending(FILES, applied(FILES[:1]), "gpu") == FILES[1:]
    assert pending(FILES, applied(FILES), "gpu") == []


@pytest.mark.parametrize("other", [Applied("a", "other"), Applied("other", FILES[0].checksum)])
def test_a_changed_or_renamed_file_is_refused_by_name(other):
    with pytest.raises(MigrationConflict, match=rf"0001_{other.name} is not this drumline's"):
        pending(FILES, {1: other}, "gpu")


def test_a_database_from_a_newer_version_is_refused():
    with pytest.raises(MigrationConflict, match="newer drumline"):
        pending(FILES, applied(FILES) | {3: Applied("c", "x")}, "gpu")


def test_numbers_follow_each_other(tmp_path):
    (tmp_path / "0001_a.sql").write_text("SELECT 1;")
    (tmp_path / "0003_c.sql").write_text("SELECT 3;")
    with pytest.raises(ValueError, match="numbered"):
        migrations(tmp_path)
    (tmp_path / "0003_c.sql").rename(tmp_path / "two.sql")
    with pytest.raises(ValueError, match="NNNN_name"):
        migrations(tmp_path)


def test_statements_are_split_at_line_ends_and_comments_left_out():
    text = "-- a; comment\nCREATE TABLE {database}.t\n(x String DEFAULT ';x'); \n\n-- b\nSELECT 2;\n"
    assert Migration(1, "a", text).statements("d") == ["CREATE TABLE d.t\n(x String DEFAULT ';x')", "SELECT 2"]


def test_a_merge_of_rows_with_sketches_or_sets_has_few_of_them_in_memory():
    # It has two granules of each part there, and such a row is kilobytes: with 8,192 rows the engine's memory ended.
    tables = [text for m in migrations() for text in m.statements("db") if text.startswith("CREATE TABLE")]
    large = [text for text in tables if re.search(r" AggregateFunction\((quantiles|uniq)", text)]
    assert len(large) >= 3
    for text in large:
        assert int(re.findall(r"index_granularity = (\d+)", text)[0]) <= 1_024, text.splitlines()[0]


def described(client, name):
    """Statements and columns of all tables of a database."""
    sql = f"SELECT {{0}} FROM system.{{1}} WHERE database = '{name}' ORDER BY ALL"
    tables = clickhouse.rows(client, sql.format(f"replaceAll(create_table_query, '{name}.', '') AS q", "tables"))
    columns = "table, name, type, position, default_expression, comment, compression_codec"
    return tables, clickhouse.rows(client, sql.format(columns, "columns"))


@pytest.mark.stack
def test_a_database_of_the_tests_is_what_migrations_make(clean_stack):
    client, name = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    names = [f"{name}_first", f"{name}_copy", f"{name}_migrated"]
    first, copy, migrated = (
        clean_stack.model_copy(update={"clickhouse": clean_stack.clickhouse.model_copy(update={"database": other})})
        for other in names
    )
    try:
        migrated_database.create(first)
        migrated_database.create(copy)
        migrate(client, migrated)
        assert described(client, names[1]) == described(client, names[2])
        kept = "SELECT name FROM system.tables WHERE database = {d:String} AND engine LIKE '%MergeTree'"
        assert {row["name"] for row in clickhouse.rows(client, kept, {"d": names[2]})} == migrated_tables(migrations())
        assert len(described(client, names[1])[0]) > 40
        assert migrate(client, copy) == []
    finally:
        for other in names:
            clickhouse.command(client, f"DROP DATABASE IF EXISTS {other} SYNC")


@pytest.mark.stack
def test_twice_is_once_and_every_table_can_deduplicate(clean_stack):
    client = clickhouse.connect(clean_stack)
    assert migrate(client, clean_stack, dry_run=True)[: len(migrations())] == [
        f"{m.version:04d}_{m.name}" for m in migrations()
    ]
    assert migrate(client, clean_stack)
    assert migrate(client, clean_stack) == []
    tables = clickhouse.rows(
        client,
        "SELECT name, engine, engine_full, "
        "extract(engine_full, 'non_replicated_deduplication_window = (\\\\d+)') AS window "
        "FROM system.tables WHERE database = {d:String} AND engine NOT IN ('View', 'MaterializedView')",
        {"d": clean_stack.clickhouse.database},
    )
    assert len(tables) > 10
    for row in tables:
        assert "MergeTree" in row["engine"], f"{row['name']} cannot deduplicate inserts"
        assert int(row["window"] or 0) >= 10_000, f"{row['name']} lacks non_replicated_deduplication_window"
        assert "now(" not in row["engine_full"].split("PARTITION BY")[-1].split("ORDER BY")[0]
        assert "fsync_after_insert = 1" in row["engine_full"], row["name"]


@pytest.mark.stack
def test_merges_keep_no_statistics_of_older_tables_either(clean_stack, monkeypatch):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    with monkeypatch.context() as older:
        older.setattr(module, "statistics_changes", lambda *_: [])
        migrate(client, clean_stack)
    assert _statistics_after_a_merge(client, f"{database}.steps") > 0, "this server keeps none: the test shows nothing"
    assert "steps: no statistics" in migrate(client, clean_stack)
    assert _statistics_after_a_merge(client, f"{database}.steps") == 0
    assert migrate(client, clean_stack) == []


def _statistics_after_a_merge(client, table):
    """Return how many columns of the table have statistics, after one more row and a merge of all."""
    for _ in range(2):
        client.command(f"INSERT INTO {table} (job, start) SELECT toString(generateUUIDv4()), now()")
    client.command(f"OPTIMIZE TABLE {table} FINAL")
    sql = (
        "SELECT countIf(notEmpty(statistics)) AS n FROM system.parts_columns "
        f"WHERE active AND database || '.' || table = '{table}'"
    )
    return clickhouse.rows(client, sql)[0]["n"]


#: Random rows in every table.
ROWS = 20


@pytest.mark.stack
def test_rows_of_this_version_stay_as_they_are_when_a_later_one_migrates(clean_stack, monkeypatch, tmp_path):
    """Random ones in every column of every table."""
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    for_ever = dict.fromkeys(RetentionSettings.model_fields, 0)
    clean_stack.clickhouse.retention = RetentionSettings(**for_ever)  # random times are old, or to come
    migrate(client, clean_stack)
    tables = clickhouse.rows(
        client,
        "SELECT table, groupArray(name) AS names, groupArray(concat(name, ' ', type)) AS structure "
        "FROM (SELECT * FROM system.columns WHERE database = {d:String} AND default_kind IN ('', 'DEFAULT') "
        "ORDER BY position) WHERE table IN (SELECT name FROM system.tables WHERE database = {d:String} "
        "AND engine LIKE '%MergeTree' AND engine != 'AggregatingMergeTree' AND name NOT LIKE 'schema_%') "
        "GROUP BY table",
        {"d": database},
    )
    assert len(tables) > 10

    def content():
        """Table -> number of rows, and a sum that changes with each value of this version's columns."""
        answers = {}
        for row in tables:
            line = f"formatRowNoNewline('TSV', {', '.join(row['names'])})"
            sql = f"SELECT count() AS n, sum(cityHash64({line})) AS hash FROM {database}.{row['table']}"
            [answers[row["table"]]] = clickhouse.rows(client, sql)
        return answers

    for seed, row in enumerate(tables):
        names, structure = ", ".join(row["names"]), ", ".join(row["structure"]).replace("'", "\\'")
        client.command(
            f"INSERT INTO {database}.{row['table']} ({names}) "
            f"SELECT * FROM generateRandom('{structure}', {seed}, 8, 2) LIMIT {ROWS}"
        )
    before = content()
    assert min(answer["n"] for answer in before.values()) > ROWS / 2, "a few have the same key, an empty one"
    monkeypatch.setattr(module, "migrations", lambda files=newer_migrations(tmp_path): files)
    done = migrate(client, clean_stack)
    assert done[0] == NAME
    assert not any(re.match(r"\d{4}_", step) for step in done[1:])
    assert content() == before
    [counted] = clickhouse.rows(client, f"SELECT sum(steps) AS n, any(steps) AS of FROM {database}.step_counts")
    assert (counted["n"], counted["of"]) == (ROWS, 1)
    views = "SELECT name FROM system.tables WHERE database = {d:String} AND engine = 'View'"
    for view in clickhouse.rows(client, views, {"d": database}):
        clickhouse.rows(client, f"SELECT * FROM {database}.{view['name']} LIMIT 1")
    assert migrate(client, clean_stack) == []


@pytest.mark.stack
def test_retention_follows_the_settings(clean_stack):
    client = clickhouse.connect(clean_stack)
    migrate(client, clean_stack)
    clean_stack.clickhouse.retention = clean_stack.clickhouse.retention.model_copy(update={"kernels": 3, "steps": 0})
    assert migrate(client, clean_stack) == ["kernels: keep 3 days", "steps: keep for ever"]
    assert migrate(client, clean_stack) == []


@pytest.mark.stack
@pytest.mark.parametrize("option", [[], ["--dry-run"]])
def test_a_database_of_another_checkout_is_named_with_what_to_do_and_left_as_it_is(
    clean_stack, environment_of, monkeypatch, tmp_path, option
):
    """Its migrations have the numbers of ours, and other texts and names; and there are more of them."""
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    table = "CREATE TABLE {database}.kernel_names (name String, rules UInt32) ENGINE = MergeTree ORDER BY name;"
    texts = [table, *["SELECT 1;"] * 8]
    with monkeypatch.context() as older:
        older.setattr(module, "migrations", lambda: [Migration(n, f"old_{n}", text) for n, text in enumerate(texts, 1)])
        migrate(client, clean_stack)
    before = described(client, database)
    done = drumline_program.run("migrate", *option, environment=environment_of(clean_stack))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"{database} has the schema of another checkout (9 migrations up to 0009_old_9" in done.stderr
    assert "nothing was changed: name another database in DRUMLINE_CLICKHOUSE__DATABASE" in done.stderr
    statement = re.search(r"\((DROP DATABASE [^)]*)\) and run drumline migrate again", done.stderr)[1]
    assert described(client, database) == before
    client.command(statement)
    assert migrate(client, clean_stack)


@pytest.mark.stack
def test_two_at_once_take_turns_and_a_dead_ones_lock_is_taken_over(clean_stack):
    client, database = clickhouse.connect(clean_stack), clean_stack.clickhouse.database
    client.command(f"CREATE DATABASE {database}")
    client.command(
        f"CREATE TABLE {database}.schema_migrations_lock (x UInt8) ENGINE = Memory COMMENT '{_exited_holder()}'"
    )
    done, failed = [], []

    def run():
        try:
            done.extend(migrate(clickhouse.connect(clean_stack), clean_stack))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert sorted(done) == sorted(set(done)), "each step is done by one of them"
    applied = clickhouse.rows(
        client, f"SELECT version, count() AS n FROM {database}.schema_migrations GROUP BY version"
    )
    assert {row["version"]: row["n"] for row in applied} == {m.version: 1 for m in migrations()}


def _exited_holder():
    process = subprocess.Popen(["true"])
    process.wait()
    return f"{socket.gethostname()}:{process.pid}"


POLICY = """<storage_configuration>
        <disks><slow><path>{folder}/</path></slow></disks>
        <policies><tiers><volumes><default><disk>default</disk></default><cold><disk>slow</disk></cold></volumes></tiers></policies>
    </storage_configuration>
    <max_server_memory_usage>"""


@pytest.mark.stack
def test_old_rows_move_to_the_cold_volume(tmp_path):
    """On an engine of its own that has a second disk."""
    tiers = TieringSettings(storage_policy="tiers", after=2)
    settings = ephemeral_settings(tmp_path, clickhouse=ClickHouseSettings(tiering=tiers))
    child = prepare_engine(settings)
    config = settings.local.state / "clickhouse" / "conf" / "config.xml"
    policy = POLICY.format(folder=settings.local.state / "clickhouse" / "data" / "slow")
    config.write_text(config.read_text().replace("<max_server_memory_usage>", policy))
    child.start(0.0)
    try:
        assert wait_until(lambda: answers(settings), WAIT_S)
        client = clickhouse.connect(settings)
        assert "kernels: keep 7 days, on volume cold after 2" in migrate(client, settings)
        assert migrate(client, settings) == []
        client.command("INSERT INTO gpu.kernels (job, start) SELECT 'j', now() - INTERVAL 3 DAY")
        client.command("INSERT INTO gpu.kernels (job, start) SELECT 'j', now()")
        where = "SELECT disk_name AS disk, rows FROM system.parts WHERE active AND table = 'kernels' ORDER BY min_time"

        def disks():
            return [row["disk"] for row in clickhouse.rows(client, where)]

        assert wait_until(lambda: disks() == ["slow", "default"], WAIT_S), disks()
        settings.clickhouse.tiering = TieringSettings()
        assert "kernels: keep 7 days" in migrate(client, settings)
    finally:
        child.end()
