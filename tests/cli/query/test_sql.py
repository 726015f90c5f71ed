"""drumline sql: reads everything, writes nothing, reports an error in one sentence."""

import csv
import io
import json
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr
from support import drumline_program, migrated_database
from support.wait_limit import WAIT_S
from typer.testing import CliRunner

from drumline.cli.query.sql import app
from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.clickhouse.client import PermanentError, TransientError, failure, with_hint
from drumline.infra.config.local_credentials import password_file
from drumline.infra.localstack.ephemeral import environment as environment_for
from drumline.infra.localstack.ephemeral import ephemeral_settings
from drumline.views.sqlshell.hints import unsupported_statement_hint
from drumline.views.sqlshell.output import cells, run_statement


class ServerError(Exception):
    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ServerError("HTTP ... Code: 60. DB::Exception: Table g.x does not exist. (UNKNOWN_TABLE) (version 26.9)", 60),
         PermanentError, "Table g.x does not exist. (UNKNOWN_TABLE)"),
        (ServerError("Code: 241. DB::Exception: Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)\nStack trace:\n0.", 241),
         TransientError, "Memory limit exceeded. (MEMORY_LIMIT_EXCEEDED)"),
        (ServerError("HTTPConnectionPool(...): [Errno 111] Connection refused"), TransientError,
         "ClickHouse does not answer (Connection refused)"),
        (ServerError("Code: 252. DB::Exception: Too many parts. (TOO_MANY_PARTS)", 252), TransientError,
         "Too many parts. (TOO_MANY_PARTS)"),
    ],
)  # fmt: skip
def test_errors_become_one_sentence_and_a_decision(error, kind, text):
    created = failure(error)
    assert (type(created), str(created)) == (kind, text)


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [  # ClickHouse's own
        ("Database nodb does not exist. (UNKNOWN_DATABASE)", 81, "no database nodb"),
        ("Unknown table expression identifier 'drumline.jobs'. In scope SELECT a FROM t. (UNKNOWN_TABLE)", 60,
         "no table drumline.jobs"),
        ("Table default.t2 does not exist. (UNKNOWN_TABLE)", 60, "no table default.t2"),
        ("Could not find table: t3. (UNKNOWN_TABLE)", 60, "no table t3"),
        ("Unknown expression identifier `attempt`. In scope SELECT x FROM t. (UNKNOWN_IDENTIFIER)", 47,
         "no column attempt"),
        ("Identifier 'a.nocol' cannot be resolved from table with name a. (UNKNOWN_IDENTIFIER)", 47,
         "no column a.nocol"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_without_the_statement(text, code, sentence):
    assert with_hint(PermanentError(text, code)) == f"ClickHouse has {sentence}: run `drumline migrate`"


def test_a_file_is_in_the_format_that_its_name_states(tmp_path):
    done = CliRunner().invoke(app, ["-o", str(tmp_path / "rows.parquet"), "SELECT 1 FORMAT JSON"])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "leave FORMAT out" in done.output
    done = CliRunner().invoke(app, ["--csv", "-o", str(tmp_path / "rows.parquet"), "SELECT 1"])
    assert (done.exit_code, list(tmp_path.iterdir())) == (2, [])


def test_without_a_server_or_tables_the_message_names_the_next_command(tmp_path):
    settings = ephemeral_settings(tmp_path)
    settings.clickhouse.password = SecretStr("x")
    for url in ("", f"http://127.0.0.1:{settings.local.clickhouse_http_port}"):
        settings.clickhouse.url = url
        with pytest.raises(
            TransientError, match=r"refused\); `drumline up` .*, DRUMLINE_CLICKHOUSE__URL names another"
        ):
            clickhouse.connect(settings)
    assert with_hint(PermanentError("no such table", 60)) == (
        "ClickHouse has not the tables of this drumline: run `drumline migrate`"
    )
    assert with_hint(PermanentError("wrong password", 516)) == "wrong password"


def test_a_cell_is_null_only_if_it_is_null():
    assert cells("\\\\N\tᴺᵁᴸᴸ\t\\N\ta\\tb\\nc\\\\d\t") == ["\\N", "ᴺᵁᴸᴸ", "NULL", "a\tb\nc\\d", ""]


def test_cells_with_control_characters_are_printed_escaped_and_in_full(capsys):
    class Answer:
        command = staticmethod(lambda *_: 2)
        raw_query = staticmethod(lambda *_, **__: "n\x1b[2J\na\x1b]0;x\x07\u202e\x9bb\\nc\n".encode())

    assert run_statement(Answer(), "SELECT 1", {}, "")
    shown = capsys.readouterr().out
    assert r"n\x1b[2J" in shown
    assert r"a\x1b]0;x\x07\u202e\x9bb\nc" in shown, "one row is one line"
    assert all(char.isprintable() for char in shown.replace("\n", ""))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SET max_threads = 1", "SETTINGS max_threads = 1"),
        ("/* once */ -- and\nset role x", "SETTINGS max_threads = 1"),
        ("use system", "database.table"),
        ("GRANT SELECT ON gpu.* TO analyst", "drumline roles"),
        ("Create User x", "drumline roles"),
        ("SYSTEM FLUSH LOGS", "drumline roles"),
        ("SELEC 1", "no statement begins with SELEC; did you mean SELECT?"),
        ("SHOWW TABLES", "did you mean SHOW?"),
    ],
)
def test_a_statement_that_is_no_query_gets_a_hint(statement, message):
    answer = CliRunner().invoke(app, [statement])
    assert answer.exit_code == 2
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "statement", ["SELECT 1", "WITH 1 AS a SELECT a", "SHOW GRANTS", "DROP TABLE x", "settle", "checks", "INSERT x"]
)
def test_clickhouse_decides_about_all_other_statements(statement):
    assert unsupported_statement_hint(statement) == ""


def runner(settings):
    environment = environment_for(settings)

    def run(*arguments, stdin="", **more):
        return drumline_program.run("sql", *arguments, environment=environment | more, stdin=stdin)

    run.environment = environment
    return run


@pytest.fixture(scope="module")
def empty(stack):
    """Settings of a database with all tables and no row, for all tests that write none."""
    settings = stack.model_copy(update={"clickhouse": stack.clickhouse.model_copy(update={"database": "gpu_empty"})})
    migrated_database.create(settings)
    return settings


@pytest.fixture
def run_sql(empty, wait_for_stack):
    wait_for_stack()
    return runner(empty)


@pytest.fixture
def run_on_rows(clean_stack):
    """On a database that the test may write to."""
    migrated_database.create(clean_stack)
    return runner(clean_stack)


@pytest.mark.stack
def test_a_question_of_a_server_without_tables_names_the_command_that_makes_them(clean_stack):
    done = runner(clean_stack)("jobs")
    assert done.returncode == 1
    database = clean_stack.clickhouse.database
    assert done.stderr == f"drumline sql: ClickHouse has no database {database}: run `drumline migrate`\n"


@pytest.mark.stack
def test_two_runs_of_one_job_are_compared(run_on_rows, clean_stack):
    client = clickhouse.connect(clean_stack, database=clean_stack.clickhouse.database)
    for number, (run, ms) in enumerate((("r1", 100), ("r2", 150), ("r3", 300))):
        published = f"now64(3) + {number}"
        for sql in (
            "INSERT INTO ledger (topic, published, disposition, job, run, rows, time_min, time_max) SELECT "
            f"'gpu.step.v1', {published}, 'stored', 'x', '{run}', 10, now64(9), now64(9)",
            "INSERT INTO steps (job, run, rank, step, start, duration_ns, gpu_duration_ns, compute_ns) SELECT 'x', "
            f"'{run}', 0, number, now64(9), {ms} * 1000000, {ms} * 1000000, {ms} * 500000 FROM numbers(10)",
            "INSERT INTO kernels (job, run, name, start, duration_ns) SELECT 'x', "
            f"'{run}', 'k', now64(9), {ms} * 1000 FROM numbers(10)",
        ):
            clickhouse.command(client, sql)
    client.close()

    def answer(*arguments):
        return [json.loads(line) for line in run_on_rows(*arguments, "--json").stdout.splitlines()]

    steps = ("compare-steps", "--job", "x")
    assert [row["run"] for row in answer(*steps)] == ["r3", "r2"], "the newest, and the one before"
    runs = [(row["run"], row["steps"], row["p50_ms"]) for row in answer(*steps, "--all-runs")]
    assert runs == [("r1", 10, 100.0), ("r2", 10, 150.0), ("r3", 10, 300.0)]
    assert [row["run"] for row in answer(*steps, "--run", "r2", "--other-run", "r1")] == ["r2", "r1"]
    kernels = ("compare-kernels", "--job", "x", "--run", "r1")
    [row] = answer(*kernels, "--other_run", "r2")
    assert (row["a_launches"], row["b_launches"], row["times"]) == (10, 10, 1.5)
    assert [(row["b_launches"], row["times"]) for row in answer(*kernels)] == [(20, 2.25)], "all its other runs"
    [row] = answer("compare-kernels", "--job", "x")
    assert (row["a_launches"], row["b_launches"], row["times"]) == (10, 10, 0.5)
    for absent, message in (
        (("--other", "y"), "no job 'y' is stored; there are: 'x'"),
        (("--other-run", "r9"), "job 'x' has no run 'r9'; there are: r3, r2, r1"),
        (("--run", "r9", "--other-run", "r1"), "job 'x' has no run 'r9'; there are: r3, r2, r1"),
    ):
        done = run_on_rows("compare-kernels", "--job", "x", *absent)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"drumline sql: {message}\n")


QUERY = "SELECT number AS n, toDateTime64('2026-01-02 03:04:05.123456789', 9, 'UTC') AS t, NULL AS x FROM numbers(2)"


@pytest.mark.stack
def test_three_shapes_of_the_same_answer(run_sql):
    table = run_sql(QUERY)
    assert table.returncode == 0
    assert "2026-01-02 03:04:05.123456789" in table.stdout, "no digit is lost"
    rows = [json.loads(line) for line in run_sql("--json", stdin=QUERY + ";\n").stdout.splitlines()]
    assert rows == [{"n": i, "t": "2026-01-02 03:04:05.123456789", "x": None} for i in (0, 1)]
    assert [line.split("\t")[0] for line in table.stdout.splitlines()] == ["n", "0", "1"], "a pipe gets plain lines"
    read = list(csv.DictReader(io.StringIO(run_sql("--csv", QUERY).stdout)))
    assert [row["n"] for row in read] == ["0", "1"]


@pytest.mark.stack
def test_files_of_sql_hold_no_formula(run_sql, tmp_path):
    statement = (
        """SELECT '=cmd|x' AS a, toLowCardinality('@SUM(A1)') AS b, ('-1+2', 'c') AS c, -5 AS d, 'e,"=f"' AS e"""
    )
    path = tmp_path / "rows.csv"
    assert run_sql(statement, "-o", str(path)).returncode == 0
    for text in (run_sql("--csv", statement).stdout, path.read_text()):
        _, row = csv.reader(io.StringIO(text))
        assert row == ["'=cmd|x", "'@SUM(A1)", "'-1+2", "c", "-5", 'e,"=f"']


@pytest.mark.stack
def test_an_answer_is_written_as_a_file_whose_name_has_the_format(run_sql, tmp_path):
    for name in ("rows.parquet", "rows.csv"):
        assert run_sql(QUERY.replace("NULL AS", "'' AS"), "-o", str(tmp_path / name)).returncode == 0
    assert pq.read_table(tmp_path / "rows.parquet")["n"].to_pylist() == [0, 1]
    assert (tmp_path / "rows.csv").read_text().splitlines()[0] == '"n","t","x"'
    wrong = run_sql("SELECT 1", "-o", str(tmp_path / "rows.xls"))
    assert wrong.returncode == 2
    assert ".parquet" in wrong.stderr
    assert run_sql("SELECT nothing", "-o", str(tmp_path / "other.csv")).returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("other")) == []


@pytest.mark.stack
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_have_the_names_of_enumerations_in_the_order_of_the_statement(run_sql, tmp_path, ending):
    path = tmp_path / f"rows.{ending}"
    kind = "'Nullable(Enum8(\\'bad\\' = -1, \\'it\\\\\\'s\\' = 7))'"
    statement = f"SELECT number AS n, CAST(if(n = 1, NULL, if(n = 2, 7, -1)), {kind}) AS `a \\`b` FROM numbers(3)"
    done = run_sql(f"{statement} ORDER BY n DESC -- last", "-o", str(path))
    assert done.returncode == 0, done.stderr
    table = pq.read_table(path) if ending == "parquet" else pa.ipc.open_file(path).read_all()
    assert table["n"].to_pylist() == [2, 1, 0]
    values = [value.decode() if isinstance(value, bytes) else value for value in table["a `b"].to_pylist()]
    assert values == ["it's", None, "bad"]
    assert run_sql("SHOW TABLES", "-o", str(path)).returncode == 0


@pytest.mark.stack
@pytest.mark.parametrize(("limit", "is_cut"), [(3, True), (9, False)])
def test_a_table_that_its_limit_may_have_cut_reports_it(run_sql, limit, is_cut):
    output = run_sql("SELECT number FROM numbers(5) LIMIT {limit:UInt32}", "--limit", str(limit))
    assert ("3 rows, the number of --limit" in output.stdout) == is_cut


@pytest.mark.stack
@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO kernels (job) VALUES ('x')", "DROP TABLE kernels", "ALTER TABLE kernels DELETE WHERE 1",
     "CREATE TABLE t (x Int8) ENGINE = Memory", "SELECT * FROM file('/etc/passwd', 'LineAsString')",
     "TRUNCATE TABLE ledger", "SELECT * FROM url('http://127.0.0.1:1', 'CSV', 'x Int8')"],
)  # fmt: skip
def test_nothing_can_be_written_and_no_file_read(run_sql, statement):
    answer = run_sql(statement)
    assert answer.returncode == 1
    assert "Traceback" not in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.stack
def test_a_writing_user_cannot_write_through_it_either(run_sql, empty):
    secret = str(password_file(empty, "writer"))
    writer = {"DRUMLINE_CLICKHOUSE__READER": "writer", "DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE": secret}
    answer = run_sql("DROP TABLE kernels", **writer)
    assert answer.returncode == 1
    assert "readonly" in answer.stderr


@pytest.mark.stack
def test_mistakes_are_named(run_sql):
    column = run_sql("SELECT nope FROM kernels").stderr
    assert "nope" in column
    assert "DESCRIBE TABLE" in column
    assert "SHOW TABLES" in run_sql("SELECT 1 FROM nope").stderr
    assert "FORMAT" not in run_sql("SELECT FROM kernels WHERE").stderr, "what was typed, not what was sent"
    unnamed = run_sql("top-kernels", "demo")
    assert unnamed.returncode == 2
    assert "'demo': give it by the name of a parameter, such as --job demo; top-kernels has --job" in unnamed.stderr
    assert run_sql("SELEC 1").returncode == 2
    assert run_sql(" ; ").returncode == 2
    assert run_sql("--json", "--csv", "SELECT 1").returncode == 2
    empty = run_sql("--json", "top-kernels", "--job", "nope")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr == "drumline sql: no job 'nope' is stored; nothing is stored yet\n"


@pytest.mark.stack
def test_a_question_is_about_the_newest_run_unless_another_is_named(run_on_rows, clean_stack):
    client = clickhouse.connect(clean_stack, database=clean_stack.clickhouse.database)
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    for run, hours in (("old", 0), ("new", 2)):
        time_of = f"'{began + timedelta(hours=hours):%F %T}'"
        for sql in (
            "INSERT INTO kernels (job, run, name, start, duration_ns) VALUES "
            f"('x', '{run}', 'k', {time_of}, {1000 + 1000 * hours})",
            "INSERT INTO ledger (topic, published, disposition, job, run, rows) VALUES "
            f"('gpu.kernel.v1', {time_of}, 'stored', 'x', '{run}', 1)",
        ):
            clickhouse.command(client, sql)
    client.close()

    def kernels(*arguments):
        done = run_on_rows("top-kernels", "--job", "x", *arguments)
        return [line.split("\t")[5] for line in done.stdout.splitlines()[1:]], done.stderr

    assert kernels() == (["3"], "run new, the newest of 2; --all-runs or --run NAME for others\n")
    assert kernels("--run", "old") == (["1"], "")
    between = began + timedelta(hours=1)
    assert kernels("--since", "100m", "--all-runs")[0] == ["3"]
    assert kernels("--until", f"{between:%F %T}", "--all-runs")[0] == ["1"]
    unknown = run_on_rows("top-kernels", "--job", "x", "--run", "z")
    assert (unknown.returncode, unknown.stderr) == (2, "drumline sql: job 'x' has no run 'z'; there are: new, old\n")


def test_a_question_explains_its_parameters():
    text = CliRunner().invoke(app, ["around-verdict", "--help"]).output
    for line in ("--rank      Int32   required    the rank that the verdict names", "--run       String  newest  "):
        assert line in text
    assert "drumline sql around-verdict --job demo --rank 2 --limit 8" in text
    assert "--all-runs" not in CliRunner().invoke(app, ["jobs", "-h"]).output
    assert "Query ClickHouse, read-only" in CliRunner().invoke(app, ["--help"]).output
    listed = CliRunner().invoke(app, ["--list"]).output
    assert "--kernel* String --job* String --run String --since TIME" in listed


def test_the_sql_of_a_question_is_printed_without_parameters():
    printed_sql = CliRunner().invoke(app, ["--print", "stragglers"])
    assert (printed_sql.exit_code, printed_sql.output.split()[0]) == (0, "SELECT")
    missing = CliRunner().invoke(app, ["stragglers"])
    assert (missing.exit_code, "stragglers needs --job" in missing.stderr) == (2, True)
    time_of = CliRunner().invoke(app, ["stragglers", "--job", "x", "--since", "noon"])
    assert (time_of.exit_code, "--since 'noon' is no time; write 1h" in time_of.stderr) == (2, True)


@pytest.mark.stack
def test_ctrl_c_cancels_the_query(run_sql, empty):
    slow = "SELECT count() FROM numbers(1000000000000) WHERE NOT ignore(sipHash64(number))"
    running = (
        "SELECT count() AS n FROM system.processes WHERE query LIKE '%1000000000000) WHERE NOT%' AND user = 'analyst'"
    )
    client = clickhouse.connect(empty)
    process = subprocess.Popen(
        [sys.executable, "-m", "drumline.cli.app", "sql", slow], env=run_sql.environment, stderr=subprocess.PIPE
    )
    until = time.monotonic() + WAIT_S
    while not clickhouse.rows(client, running)[0]["n"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT_S) == 130
    assert b"Traceback" not in process.stderr.read()
    until = time.monotonic() + WAIT_S
    while clickhouse.rows(client, running)[0]["n"]:
        assert time.monotonic() < until, "the query still runs"
        time.sleep(0.1)
