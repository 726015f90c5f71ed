"""The Python client on the engine: answers are Arrow tables, nothing is written, errors say whether to retry."""

import pytest
from support import migrated_database

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.local_credentials import local_password
from drumline.infra.localstack.ephemeral import free_ports
from drumline.views.client import BadRequest, NoSuchRun, PermanentError, TransientError, UnknownQuery, connect

VERDICTS = """INSERT INTO stragglers_versions (job, run, rank, first_step, window_start, severity, state, changed,
cause, published) SELECT 'j', 'r' || toString(number % 2), number % 3, number, now() - 60,
if(number > 3, 'critical', 'ok') AS word, word, 1, 'slow_copy', now() FROM numbers(6)"""
LEDGER = """INSERT INTO ledger (topic, published, disposition, job, run, rank, host, rows, time_min, time_max)
SELECT 'gpu.step.v1', now() - number, 'stored', 'j', 'r' || toString(number), 0, 'h', 1, now() - 60 - number, now()
FROM numbers(2)"""


@pytest.mark.stack
def test_answers_are_tables_and_nothing_is_written(clean_stack):
    migrated_database.create(clean_stack)
    writer = clickhouse.connect(clean_stack, database=clean_stack.clickhouse.database)
    for statement in (VERDICTS, LEDGER):
        clickhouse.command(writer, statement)
    with connect(clean_stack) as db:
        assert db.jobs().column("run").to_pylist() == db.runs("j").column("run").to_pylist() == ["r0", "r1"]
        newest = db.verdicts("j")
        assert newest.column("severity").to_pylist() == ["critical"]
        assert newest.column("run").to_pylist() == ["r0"]
        assert db.verdicts("j", severity="ok").num_rows == 3
        assert db.ask("stragglers", job="j", run="r1").num_rows == 1
        assert db.ask("stragglers", job="j", since="1h", all_runs=True).num_rows == 2
        assert db.sql("SELECT {x:Array(String)} AS x, {n:UInt8} AS n", {"x": ["it's", "\\"], "n": 3}).to_pylist() == [
            {"x": ["it's", "\\"], "n": 3}
        ]
        for write in ("INSERT INTO ledger (job) VALUES ('x')", "DROP TABLE ledger", "SELECT 1 SETTINGS readonly = 0"):
            with pytest.raises(PermanentError, match=r"ACCESS_DENIED|READONLY"):
                db.sql(write)
        with pytest.raises(PermanentError, match="parsed"):
            db.sql("SELECT {n:UInt8}", {"n": "x"})
        with pytest.raises(UnknownQuery, match="did you mean stragglers"):
            db.ask("straggler", job="j")
        with pytest.raises(BadRequest, match="needs --job"):
            db.ask("stragglers")
        with pytest.raises(BadRequest, match="insufficient_data, ok, suspect"):
            db.verdicts("j", severity="bad")
        with pytest.raises(NoSuchRun, match="there are: 'j'"):
            db.verdicts("x")
    password = local_password(clean_stack, "writer").get_secret_value()
    with (
        connect(clean_stack, user="writer", password=password) as db,
        pytest.raises(PermanentError, match="READONLY"),
    ):
        db.sql("INSERT INTO ledger (job) VALUES ('x')")


def test_a_server_that_is_away_may_come_back():
    [port] = free_ports(1)
    with pytest.raises(TransientError, match="does not answer"):
        connect(url=f"http://127.0.0.1:{port}", password="x")


def test_the_package_has_the_call_that_opens_a_connection():
    import drumline

    assert drumline.connect is connect
