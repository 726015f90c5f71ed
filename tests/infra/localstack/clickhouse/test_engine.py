"""The local ClickHouse engine: the wheel's private entry point, who may do what, and having it only while needed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError
from pydantic import SecretStr
from support.wait_limit import WAIT_S

from drumline.infra.config.local_credentials import local_password, password_file
from drumline.infra.config.settings import Settings
from drumline.infra.config.state_dir import StackError, State, locked
from drumline.infra.localstack import stack as local_stack
from drumline.infra.localstack.clickhouse.engine import answers, ensure_engine, query, temporary_engine
from drumline.infra.localstack.processes import own_processes

pytestmark = pytest.mark.stack


def client(settings: Settings, user: str) -> Any:
    password = local_password(settings, user).get_secret_value()
    return clickhouse_connect.get_client(
        host="127.0.0.1", port=settings.local.clickhouse_http_port, username=user, password=password
    )


@pytest.fixture
def table(clean_stack: Settings) -> Iterator[str]:
    """A table with ten rows that the writer made."""
    database = clean_stack.clickhouse.database
    writer = client(clean_stack, "writer")
    writer.command(f"CREATE DATABASE {database}")
    writer.command(f"CREATE TABLE {database}.t (n UInt64) ENGINE = MergeTree ORDER BY n")
    writer.insert(f"{database}.t", [[n] for n in range(10)], column_names=["n"])
    yield f"{database}.t"
    writer.close()


def test_the_private_entry_point_of_the_pinned_wheel_serves_and_ends_with_its_stdin(private: Settings) -> None:
    with temporary_engine(private):
        assert query(private, "SELECT version()", "analyst") == "26.9.2.1"
        with pytest.raises(StackError):  # a user without a password
            query(private, "SELECT 1", "default", SecretStr(""))
    assert not answers(private)


def test_writer_makes_tables_views_and_materialized_views_only_in_our_databases(
    clean_stack: Settings, table: str
) -> None:
    database, writer = clean_stack.clickhouse.database, client(clean_stack, "writer")
    writer.command(f"CREATE TABLE {database}.u (k UInt64, c UInt64) ENGINE = SummingMergeTree ORDER BY k")
    writer.command(
        f"CREATE MATERIALIZED VIEW {database}.m TO {database}.u AS "
        f"SELECT n % 2 AS k, count() AS c FROM {table} GROUP BY k"
    )
    writer.command(f"ALTER TABLE {table} ADD COLUMN name String")
    writer.insert(table, [[1, "a"], [3, "b"]], column_names=["n", "name"])
    assert writer.query(f"SELECT sum(c) FROM {database}.u").result_rows == [(2,)]
    for statement in ("CREATE DATABASE elsewhere", "CREATE USER eve", "SYSTEM SHUTDOWN"):
        with pytest.raises(DatabaseError, match="497"):
            writer.command(statement)


@pytest.mark.parametrize("user", ["analyst", "page", "grafana"])
def test_readers_read_our_tables_and_the_catalogue(clean_stack: Settings, table: str, user: str) -> None:
    reader = client(clean_stack, user)
    assert reader.query(f"SELECT count() FROM {table}").result_rows == [(10,)]
    assert (table.split(".")[1],) in reader.query(f"SHOW TABLES FROM {table.split('.')[0]}").result_rows
    for name in ("tables", "columns", "databases", "settings", "functions"):
        assert reader.query(f"SELECT count() > 0 FROM system.{name}").result_rows == [(1,)]


@pytest.mark.parametrize("user", ["analyst", "page", "grafana"])
def test_readers_begin_in_our_database_without_naming_it(stack: Settings, user: str) -> None:
    assert query(stack, "SELECT currentDatabase()", user) == stack.clickhouse.database


@pytest.mark.parametrize("user", ["analyst", "page", "grafana"])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {table} VALUES (1)",
        "DROP TABLE {table}",
        "TRUNCATE TABLE {table}",
        "ALTER TABLE {table} DELETE WHERE 1",
        "CREATE TABLE {table}2 (n UInt8) ENGINE = Memory",
        "CREATE TEMPORARY TABLE x (n UInt8)",
        "SELECT * FROM file('/etc/passwd', 'LineAsString')",
        "SELECT * FROM url('http://127.0.0.1:1/', 'LineAsString')",
        "SELECT * FROM remote('127.0.0.1', {table})",
        "SELECT * FROM s3('http://127.0.0.1:1/bucket/key', 'LineAsString')",
        "SELECT * FROM executable('ls', 'TSV', 'a String')",
        "SELECT * FROM system.query_log",
        "SELECT * FROM system.processes",
        "SYSTEM STOP LISTEN HTTP",
    ],
)
def test_readers_are_refused(clean_stack: Settings, table: str, user: str, statement: str) -> None:
    client(clean_stack, "writer").command("SYSTEM FLUSH LOGS")  # a table of the log is there from its first flush on
    with pytest.raises(DatabaseError, match=r"497|ACCESS_DENIED|READONLY"):
        client(clean_stack, user).command(statement.format(table=table))


@pytest.mark.parametrize("user", ["writer", "analyst", "page", "grafana"])
def test_no_user_ends_the_engine_by_the_table_function_of_python_variables(stack: Settings, user: str) -> None:
    [before] = own_processes(stack)["engine"]
    for statement in (
        "SELECT * FROM python('x')",
        "SELECT * FROM /* python */ `PyThOn`(x)",
        "DESCRIBE TABLE python('x')",
        "EXPLAIN SELECT * FROM view(SELECT (SELECT * FROM Python('x')))",
        "INSERT INTO FUNCTION python('x') VALUES (1)",
        "SELECT * FROM python('x') SETTINGS compatibility = '24.1'",
        "SELECT * FROM python('x') SETTINGS allow_python_table_function = 1",
        "SET allow_python_table_function = 1",
    ):
        with pytest.raises(DatabaseError, match=r"446|392|497|FUNCTION_NOT_ALLOWED|PROHIBITED"):
            client(stack, user).command(statement)
    assert client(stack, user).command("SELECT 'python(x)' AS python") == "python(x)"
    assert own_processes(stack)["engine"] == [before], "the engine was not started again"


@pytest.mark.parametrize("user", ["writer", "analyst"])
def test_no_user_reads_files_of_the_host_by_the_scalar_function_file(
    stack: Settings, user: str, tmp_path: Path
) -> None:
    changed_settings = tmp_path / "mine"
    changed_settings.write_text("secret")
    readable = client(stack, user).command("SELECT length(file('config.xml')) > 0")
    assert readable == 1, "the function works, so what follows is refused for the right reason"
    for path in ("/etc/passwd", password_file(stack, "writer"), "/proc/1/environ", changed_settings):
        with pytest.raises(DatabaseError, match=r"Permission denied|CANNOT_OPEN_FILE"):
            client(stack, user).command(f"SELECT file('{path}')")
    with pytest.raises(DatabaseError):
        client(stack, user).command("SELECT * FROM system.warnings INTO OUTFILE '/tmp/out'")


def test_the_engine_does_not_inherit_secrets_of_the_environment(
    private: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
    with ensure_engine(private):
        assert "hush-hush" not in query(private, "SELECT file('/proc/self/environ')", "analyst")


@pytest.mark.parametrize(
    "setting", ["max_memory_usage = 99999999999", "max_execution_time = 0", "max_result_rows = 0", "readonly = 0"]
)
def test_readers_cannot_lift_their_limits(stack: Settings, setting: str) -> None:
    with pytest.raises(DatabaseError, match=r"452|164"):
        client(stack, "analyst").command(f"SELECT 1 SETTINGS {setting}")
    assert (
        client(stack, "analyst").command("SELECT 1 SETTINGS max_execution_time = 5, max_memory_usage = 100000000") == 1
    )


@pytest.mark.parametrize("user", ["analyst", "grafana"])
def test_a_query_of_readers_gets_two_threads_in_the_little_memory_of_the_engine(stack: Settings, user: str) -> None:
    # ClickHouse's own limit is a thread for each free GiB.
    plan = query(stack, "EXPLAIN PIPELINE SELECT sum(number) FROM numbers_mt(100000000)", user)
    assert "NumbersRange × 2" in plan, plan


def test_a_query_of_the_page_gets_one_thread_however_many_it_asks_for(stack: Settings) -> None:
    plan = query(stack, "EXPLAIN PIPELINE SELECT sum(number) FROM numbers_mt(100000000)", "page")
    assert "NumbersRange × 2" not in plan, plan
    with pytest.raises(DatabaseError, match="452"):
        client(stack, "page").command("SELECT 1 SETTINGS max_threads = 2")


def test_what_the_page_reads_is_not_counted_against_people(stack: Settings) -> None:
    def used(user: str) -> int:
        return int(query(stack, f"SELECT sum(queries) FROM system.quotas_usage WHERE quota_name = '{user}'", "writer"))

    before = used("analyst")
    for _ in range(10):  # a new minute may begin between them
        query(stack, "SELECT count() FROM numbers(1)", "page")
    assert used("page") > 0
    assert used("analyst") in (0, before)


@pytest.mark.parametrize("user", ["analyst", "page", "grafana"])
def test_readers_have_no_more_rows_of_sketches_in_memory_than_fit(stack: Settings, user: str) -> None:
    # A row of kernels_per_minute is 4 kB there.
    rows = int(query(stack, "SELECT max(blockSize()) FROM numbers(1000000)", user))
    assert 8_192 <= rows <= 16_384


def test_memory_of_other_programs_in_its_container_does_not_stop_its_queries(stack: Settings) -> None:
    # By its cgroup's memory the engine would refuse everything beside a training job of 1.2 GB.
    sql = "SELECT value FROM system.server_settings WHERE name = 'memory_worker_use_cgroup'"
    assert query(stack, sql, "writer").strip() == "0"


def test_freed_memory_is_kept_for_two_processors_however_many_there_are(private: Settings) -> None:
    # Kept for each of 16, it reached the engine's limit beside a third of it in use.
    with ensure_engine(private):
        statistics = query(private, "SELECT * FROM system.jemalloc_stats", "writer")
    assert 'opt.percpu_arena: "disabled"' in statistics.replace("\\", "")
    assert "opt.narenas: 2" in statistics


def test_no_thread_of_the_engine_polls_for_log_lines(stack: Settings) -> None:
    [engine] = own_processes(stack)["engine"]
    threads = {Path(f"/proc/{engine.pid}/task/{thread.id}/comm").read_text().strip() for thread in engine.threads()}
    assert "MemoryWorker" in threads, "threads have names"
    assert "AsyncLogger" not in threads


def test_small_parts_are_merged_ten_at_a_time(stack: Settings) -> None:
    base = "SELECT value FROM system.merge_tree_settings WHERE name = 'merge_selector_base'"
    assert query(stack, base, "writer").strip() == "10"


def test_a_result_that_is_too_large_is_an_error_not_a_cut(stack: Settings) -> None:
    reader = client(stack, "analyst")
    with pytest.raises(DatabaseError, match="396"):
        reader.query("SELECT number FROM numbers(2000000)", settings={"wait_end_of_query": 1})


@pytest.mark.parametrize("user", ["writer", "analyst", "page", "grafana", "default"])
def test_wrong_and_empty_passwords_are_refused(stack: Settings, user: str) -> None:
    for password in ("", "wrong"):
        with pytest.raises(StackError, match=r"AUTHENTICATION_FAILED|REQUIRED_PASSWORD|USER_SESSION_LIMIT_EXCEEDED"):
            query(stack, "SELECT 1", user, SecretStr(password))


@pytest.mark.parametrize("extra", ["", "&session_id=s", "&max_sessions_for_user=9", "&max_sessions_for_user=0"])
def test_default_cannot_log_in(stack: Settings, extra: str) -> None:
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{stack.clickhouse_url}/?user=default&query=SELECT%201{extra}", timeout=10)


def test_default_cannot_log_in_over_the_native_port(stack: Settings, tmp_path: Path) -> None:
    run_query = f"SELECT dummy FROM remote('127.0.0.1:{stack.local.clickhouse_tcp_port}', system.one, '%s', '%s')"
    analyst = local_password(stack, "analyst").get_secret_value()
    code = "import sys, chdb; print(chdb.query(sys.argv[1]))"
    answer = [
        subprocess.run(
            [sys.executable, "-c", code, run_query % principal_name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        for principal_name in (("analyst", analyst), ("default", ""))
    ]
    assert answer[0].stdout.strip() == "0", answer[0].stderr
    assert answer[1].stdout == ""
    assert "USER_SESSION_LIMIT_EXCEEDED" in answer[1].stderr


def test_secrets_are_private_and_stay(stack: Settings) -> None:
    for user in ("writer", "analyst", "page", "grafana"):
        assert password_file(stack, user).stat().st_mode & 0o777 == 0o600
    assert State.of(stack).secrets.stat().st_mode & 0o777 == 0o700
    assert local_password(stack, "writer").get_secret_value() == local_password(stack, "writer").get_secret_value()
    with pytest.raises(StackError, match="no user"):
        local_password(stack, "eve")


def test_ensure_engine_uses_the_running_one(stack: Settings) -> None:
    before = [process.pid for process in own_processes(stack)["engine"]]
    with ensure_engine(stack):
        assert [process.pid for process in own_processes(stack)["engine"]] == before
    assert answers(stack)


def test_ensure_engine_starts_one_and_stops_it_and_data_stays(private: Settings) -> None:
    for expected in ("0", "1"):
        with ensure_engine(private):
            query(private, f"CREATE DATABASE IF NOT EXISTS {private.clickhouse.database}", "writer")
            query(private, "CREATE TABLE IF NOT EXISTS gpu.t (n UInt8) ENGINE = MergeTree ORDER BY n", "writer")
            assert query(private, "SELECT count() FROM gpu.t", "analyst") == expected
            query(private, "INSERT INTO gpu.t VALUES (1)", "writer")
        assert not answers(private)


def test_who_started_the_engine_keeps_it_until_the_last_user_is_done(private: Settings) -> None:
    entered, leave = threading.Event(), threading.Event()

    def starter() -> None:
        with ensure_engine(private):
            entered.set()
            leave.wait(WAIT_S)

    thread = threading.Thread(target=starter)
    thread.start()
    assert entered.wait(WAIT_S)
    with ensure_engine(private):
        leave.set()
        time.sleep(0.5)
        assert query(private, "SELECT 1", "analyst") == "1"
    thread.join(30)
    assert not answers(private)


def test_an_engine_dies_with_its_parent_even_by_kill_9(private: Settings, environment_of: Callable[..., Any]) -> None:
    code = "import time\nfrom drumline.infra.localstack.clickhouse.engine import ensure_engine\n"
    code += "from drumline.infra.config.settings import settings\n"
    code += "with ensure_engine(settings()):\n    print('up', flush=True)\n    time.sleep(60)\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=environment_of(private), stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "up\n"
    assert own_processes(private)["engine"]
    parent.kill()
    parent.wait()
    assert local_stack.wait_until(lambda: not own_processes(private)["engine"], WAIT_S)


def test_another_engine_on_the_port_is_recognised(stack: Settings, private: Settings) -> None:
    same = private.local.model_copy(update={"clickhouse_http_port": stack.local.clickhouse_http_port})
    with (
        pytest.raises(StackError, match="DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT"),
        ensure_engine(private.model_copy(update={"local": same})),
    ):
        pass


def test_the_port_of_a_running_engine_is_named_where_another_is_set(stack: Settings) -> None:
    other = stack.model_copy(update={"local": stack.local.model_copy(update={"clickhouse_http_port": 1})})
    message = "not at http://127.0.0.1:1: set DRUMLINE_LOCAL__CLICKHOUSE_HTTP_PORT"
    with pytest.raises(StackError, match=message), ensure_engine(other):
        pass


def test_a_configured_server_is_left_alone(private: Settings) -> None:
    url = {"clickhouse": private.clickhouse.model_copy(update={"url": "http://127.0.0.1:1"})}
    with ensure_engine(private.model_copy(update=url)):
        assert not State.of(private).root.exists()


def test_a_lock_that_stays_busy_has_a_reason(private: Settings) -> None:
    path = private.local.state / "lock"
    with (
        locked(path, "first"),
        pytest.raises(StackError, match="busy for a reason"),
        locked(path, "busy for a reason", timeout_s=0.2),
    ):
        pass
