"""drumline sql against a server that rejects, is too slow, or dies: exit code 1, one sentence with the remedy."""

import threading
import time

import pytest
from support import migrated_database
from support.wait_limit import WAIT_S
from typer.testing import CliRunner

from drumline.cli.query import sql as command_sql
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.local_credentials import local_password
from drumline.infra.config.settings import settings as in_force
from drumline.infra.localstack.clickhouse.config import prepare_engine
from drumline.infra.localstack.clickhouse.engine import answers, wait_until
from drumline.infra.localstack.ephemeral import ephemeral_settings

pytestmark = pytest.mark.stack
#: Grafana's user may run few queries here, so that a test can use its quota up.
QUOTA = "<queries>3000</queries>", "<queries>8</queries>"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """(settings, the engine's process) of a server with the schema."""
    yield from serve(tmp_path_factory.mktemp("served"))


@pytest.fixture
def mortal(tmp_path):
    """The same, for a test that kills it."""
    yield from serve(tmp_path)


def serve(folder):
    settings = ephemeral_settings(folder)
    child = prepare_engine(settings)
    users = settings.local.state / "clickhouse" / "conf" / "users.xml"
    users.write_text(users.read_text().replace(*QUOTA))
    child.start(time.monotonic())
    try:
        assert wait_until(lambda: answers(settings), WAIT_S)
        migrated_database.create(settings)
        yield settings, child.process
    finally:
        child.end()


@pytest.fixture
def run_sql(monkeypatch, tmp_path):
    """Asks as a program elsewhere would: by URL, user and password."""

    def call(settings, *arguments, user="analyst", password=None):
        secret = password or local_password(settings, user).get_secret_value()
        monkeypatch.setenv("DRUMLINE_CLICKHOUSE__URL", settings.clickhouse_url)
        monkeypatch.setenv("DRUMLINE_CLICKHOUSE__READER", user)
        (tmp_path / "secret").write_text(secret)
        monkeypatch.setenv("DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE", str(tmp_path / "secret"))
        in_force.cache_clear()
        answer = CliRunner().invoke(command_sql.app, arguments)
        assert secret not in answer.output
        return answer

    yield call
    in_force.cache_clear()


def is_rejected(answer, *texts):
    assert answer.exit_code == 1, answer.output
    assert answer.stderr.startswith("drumline sql: ")
    assert answer.stderr.count("\n") == 1, answer.stderr
    for text in texts:
        assert text in answer.stderr, answer.stderr


@pytest.mark.parametrize(("user", "password"), [("analyst", "not-the-password"), ("nobody", "whatever")])
def test_a_wrong_password_and_an_unknown_user_name_the_settings(served, run_sql, user, password):
    is_rejected(
        run_sql(served[0], "SELECT 1", user=user, password=password),
        f"{user} at http://127.0.0.1:", "DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("statement", "texts"),
    [
        ("SELECT * FROM system.users", ("Not enough privileges", "docs/guide/security.md")),
        ("SELECT * FROM remote('127.0.0.1', system.one)", ("Not enough privileges", "docs/guide/security.md")),
        ("SELECT * FROM s3('http://127.0.0.1:1/bucket/x')", ("docs/guide/security.md",)),
        ("SELECT * FROM executable('x', 'CSV', 'x Int8')", ("docs/guide/security.md",)),
        ("CREATE FUNCTION f AS x -> x", ("drumline sql",)),
        ("SELECT count() FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number)) "
         "SETTINGS max_execution_time = 1", ("Timeout exceeded", "--since")),
        ("SELECT length(groupArray(number)) FROM numbers(1000000000)", ("emory", "read less")),
        ("SELECT 1 SETTINGS max_memory_usage = 100000000000", ("max_memory_usage",)),
    ],
)  # fmt: skip
def test_a_statement_beyond_the_readers_rights_or_limits_gets_a_hint(served, run_sql, statement, texts):
    is_rejected(run_sql(served[0], statement), *texts)


def test_a_result_that_is_too_large_ends_where_the_limit_is(served, run_sql):
    answer = run_sql(served[0], "--csv", "SELECT number FROM numbers(2000000)")
    is_rejected(answer, "Limit for result exceeded", "LIMIT")
    assert answer.stdout.count("\n") <= 1_000_001


def test_a_used_up_quota_names_its_end(served, run_sql):
    output = [run_sql(served[0], "SELECT 1", user="grafana") for _ in range(9)]
    assert output[0].exit_code == 0
    is_rejected(output[-1], "uota", "interval")


def test_a_server_that_is_not_there(tmp_path, run_sql):
    is_rejected(run_sql(ephemeral_settings(tmp_path), "SELECT 1", password="x"), "does not answer (Connection refused)")


SLOW = "SELECT count() FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"
#: Each block is larger than the buffer, so some of the answer has gone out before the end.
MUCH = "SELECT repeat('x', 1000000), sleepEachRow(0.1) FROM numbers(1000) SETTINGS max_block_size = 4"


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ((SLOW,), "does not answer"),
        (("--csv", MUCH), "closed the connection in the middle of the answer; the output is incomplete"),
    ],
    ids=["before the answer", "in the middle of the answer"],
)
def test_a_server_that_dies_in_a_query(mortal, run_sql, arguments, texts):
    settings, process = mortal
    client = clickhouse.connect(settings)

    def kill_it():
        running = "SELECT count() AS n FROM system.processes WHERE user = 'analyst' AND elapsed > 1.5"
        wait_until(lambda: clickhouse.rows(client, running)[0]["n"] > 0, WAIT_S)
        process.kill()

    killer = threading.Thread(target=kill_it)
    killer.start()
    answer = run_sql(settings, *arguments)
    killer.join()
    is_rejected(answer, texts)
