"""`drumline sql`: read-only queries to ClickHouse."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from typer.core import TyperCommand

from drumline.cli.console import exit_on_error, exit_with, replaced
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo

if TYPE_CHECKING:
    from drumline.infra.clickhouse.client import ClickHouseFailed, Client
    from drumline.views.sqlshell.request import Request

#: Ending of a file's name -> ClickHouse's format.
FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".csv": "CSVWithNames", ".tsv": "TSVWithNames",
           ".jsonl": "JSONEachRow"}  # fmt: skip
#: Characters of a line where the output is no terminal.
WIDTH = 160


class QueryCommand(TyperCommand):
    """Prints the help of a named question where its name is given beside --help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; end with a question's help."""
        if {"-h", "--help"} & set(args):
            from drumline.infra.clickhouse.queries import queries
            from drumline.views.sqlshell.questions import question_help

            if query := next((queries()[name] for name in args if name in queries()), None):
                echo(question_help(query, _width()))
                ctx.exit()
        return super().parse_args(ctx, args)


app = typer.Typer(add_completion=False)


@app.command(cls=QueryCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sql(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(
            help="One SQL statement, may end with FORMAT X; or a query's name. Without: an interactive shell on a "
            "terminal, else standard input."
        ),
    ] = None,
    named: Annotated[
        bool, typer.Option("--list", help="Name the queries of the cookbook, with their parameters and types.")
    ] = False,
    all_runs: Annotated[
        bool, typer.Option("--all-runs", help="A named query of a job: over all its runs; default: the newest.")
    ] = False,
    text: Annotated[bool, typer.Option("--print", help="Print the named query's SQL; do not run it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, streamed.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header, streamed.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write all rows to this file: .parquet, .arrow, .csv, .tsv, .jsonl."),
    ] = None,
) -> None:
    """Query ClickHouse, read-only. The local engine is started if it is down. Ctrl-C cancels the query.

    A terminal shows a table, or the rows below each other where it is too narrow; a pipe gets tab-separated lines.

    A name runs a query of docs/reference/cookbook.md; its parameters are options: `drumline sql NAME --help`. It is
    about the newest run of --job, unless --run or --all-runs is given. Other SQL can have parameters too:
    {name:Type}. Tables and columns: SHOW TABLES, DESCRIBE TABLE steps. Times are UTC in nanoseconds, durations end in
    _ns. A time is given as 1h, 90m or 2d (ago), now, or YYYY-MM-DDThh:mm, UTC unless an offset is given.

    Exit codes: 0 answered. 1 ClickHouse does not answer, or rejects the query. 2 no such job or run, or wrong input.

    Examples:

    \b
      drumline sql --list
      drumline sql top-kernels --job demo --limit 5
      drumline sql "SELECT rank, count(), sum(duration_ns) / 1e9 AS gpu_s FROM kernels GROUP BY rank ORDER BY rank"
      drumline sql "SELECT count() FROM kernels WHERE job = {job:String}" --job demo
    """
    if as_json and as_csv:
        exit_with("sql", BAD_INPUT, "--json or --csv, not both")
    if named:
        _list(as_json)
        return
    requested = [".jsonl"] * as_json + [".csv"] * as_csv
    if output is not None and (output.suffix not in FORMATS or output.suffix not in (requested or FORMATS)):
        exit_with("sql", BAD_INPUT, f"--output {output}: the name has the format, one of {', '.join(FORMATS)}")
    if (
        query is None
        and not context.args
        and sys.stdin.isatty()
        and sys.stdout.isatty()
        and output is None
        and not text
    ):
        _interactive()
        return
    with _exit_on_bad_request():
        request = _request([*([query] if query is not None else []), *context.args, *["--all-runs"] * all_runs])
        if text:
            echo(request.query.sql)
            return
        request.values(datetime.now(UTC))  # before an engine is started
    if output is None:
        _execute(request, "JSONEachRow" if as_json else "CSVWithNames" if as_csv else "")
        return
    from drumline.views.sqlshell.output import has_format

    if has_format(request.query.sql):
        exit_with("sql", BAD_INPUT, f"--output {output}: the name has the format; leave FORMAT out of the statement")
    with replaced("sql", output) as part, part.open("wb") as file:
        _execute(request, FORMATS[output.suffix], file)
    echo(f"written: {output}", err=True)


def _exit_on_bad_request() -> AbstractContextManager[None]:
    from drumline.views.sqlshell.request import BadRequest

    return exit_on_error("sql", BadRequest, code=BAD_INPUT)


def _request(arguments: list[str]) -> Request:
    """Return the query of the arguments, or of standard input. Raises BadRequest, and typer.Exit without any."""
    from drumline.views.sqlshell.request import parse_request

    if not any(not argument.startswith("--") for argument in arguments):
        if sys.stdin.isatty():
            text = 'no query; give one: drumline sql "SELECT ...", pipe it in, or see drumline sql --list'
            exit_with("sql", BAD_INPUT, text)
        arguments = [*arguments, sys.stdin.read()]
    return parse_request(arguments)


def _execute(request: Request, output_format: str, file: BinaryIO | None = None) -> None:
    """Print the answer, or write it to `file`. Raises typer.Exit with FAILED or BAD_INPUT."""
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, is_missing, with_hint
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.report.data import NoSuchRun
    from drumline.views.sqlshell.hints import with_remedy

    config = settings()
    nearest = ""
    try:
        with ensure_engine(config), _exit_on_bad_request(), exit_on_error("sql", NoSuchRun, code=BAD_INPUT):
            client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
            try:
                answer(client, request, output_format, file)
            except ClickHouseFailed as error:
                nearest = _nearest(client, request, error)
                raise
    except (ClickHouseFailed, StackError) as error:
        # A question names tables and columns of drumline only: one that is missing is not made yet.
        exit_with(
            "sql", FAILED, with_hint(error) if is_missing(error) and request.is_named else with_remedy(error, nearest)
        )
    except BrokenPipeError:  # `| head` has ended
        sys.stderr.close()


def _interactive() -> None:
    """Read and run lines until the end of input; the engine stays up meanwhile."""
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.report.data import NoSuchRun
    from drumline.views.sqlshell.hints import with_remedy
    from drumline.views.sqlshell.interactive import load_catalogue, loop, prompt_session
    from drumline.views.sqlshell.request import BadRequest

    config = settings()
    with exit_on_error("sql", ClickHouseFailed, StackError), ensure_engine(config):
        client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
        session = prompt_session(config.local.state / "sql_history", load_catalogue(client))

        def execute(request: Request) -> None:
            try:
                answer(client, request)
            except ClickHouseFailed as error:
                raise BadRequest(with_remedy(error, _nearest(client, request, error))) from None

        echo(
            f"{config.clickhouse_url}, database {config.clickhouse.database}, read-only; `;` ends a statement, "
            "`help` lists commands"
        )
        loop(lambda: session.prompt("sql> "), execute, (BadRequest, NoSuchRun))


def _nearest(client: Client, request: Request, error: ClickHouseFailed) -> str:
    """Return which column a misspelt one of the statement may stand for; "" = none, or another error."""
    from drumline.infra.clickhouse.error_codes import ErrorCode
    from drumline.views.sqlshell.interactive import load_catalogue
    from drumline.views.sqlshell.nearest_names import nearest_columns

    if error.code != ErrorCode.UNKNOWN_IDENTIFIER:
        return ""
    return nearest_columns(str(error), request.query.sql, load_catalogue(client).tables)


def answer(client: Client, request: Request, output_format: str = "", file: BinaryIO | None = None) -> None:
    """Print the answer of a request, and the run that it is about; or write it to `file`.

    Raises NoSuchRun where the job or the run is not stored, BadRequest and ClickHouseFailed.
    """
    from drumline.infra.clickhouse.client import rows
    from drumline.views.client.connection import of_newest_run
    from drumline.views.report.data import find_run
    from drumline.views.sqlshell.output import run_statement

    def load(sql: str, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        return rows(client, sql, parameters)

    job, run, note = request.given.get("job", ""), request.given.get("run", ""), ""
    chosen, more_runs = of_newest_run(request, load)
    if chosen is not request:
        more = (
            f", the newest of {more_runs + 1}; --all-runs or --run NAME for others" if more_runs else ", the only one"
        )
        before = f" (a) and the one before it, {other} (b)" if (other := chosen.given.get("other_run")) else ""
        note = f"run {chosen.given['run']}{before}{more}"
    has_rows = run_statement(client, chosen.query.sql, chosen.values(datetime.now(UTC)), output_format, file)
    if job and not has_rows:
        find_run(load, job, run)
    if note:
        echo(note, err=not sys.stdout.isatty())


def _list(as_json: bool) -> None:
    from drumline.infra.clickhouse.queries import queries
    from drumline.views.sqlshell.questions import question_list

    all_queries = queries().values()
    if not as_json:
        echo(question_list(all_queries, _width()))
        return
    for entry in all_queries:
        echo(json.dumps(entry.described()))


def _width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
