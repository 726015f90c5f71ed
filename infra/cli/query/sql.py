"""`drumline sql`: read-only queries to ClickHouse."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from drumline.infra.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo, terminal_console

if TYPE_CHECKING:
    from drumline.infra.clickhouse.client import Client

app = typer.Typer(add_completion=False)
#: Ending of a file's name -> ClickHouse's format.
FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".csv": "CSVWithNames", ".tsv": "TSVWithNames",
           ".jsonl": "JSONEachRow"}  # fmt: skip
_NAME = re.compile(r"[a-z][a-z0-9-]*")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def sql(
    context: typer.Context,
    query: Annotated[
        str | None,
        typer.Argument(
            help="One SQL statement, may end with FORMAT X; or a query's name. Standard input when left out."
        ),
    ] = None,
    named: Annotated[
        bool, typer.Option("--list", help="Name the queries of the cookbook, with their parameters.")
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

    A name runs a query of docs/reference/cookbook.md; its parameters are options. Other SQL can have parameters too:
    {name:Type}. Tables and columns: docs/reference/tables.md. Times are UTC in nanoseconds, durations end in _ns.
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
    if output is not None and (as_json or as_csv or output.suffix not in FORMATS):
        exit_with("sql", BAD_INPUT, f"--output {output}: the name has the format, one of {', '.join(FORMATS)}")
    statement, values = _statement([*([query] if query is not None else []), *context.args])
    if text:
        echo(statement)
        return
    if output is None:
        _execute(statement, values, "JSONEachRow" if as_json else "CSVWithNames" if as_csv else "")
        return
    from drumline.infra.sqlshell.output import has_format

    if has_format(statement):
        exit_with("sql", BAD_INPUT, f"--output {output}: the name has the format; leave FORMAT out of the statement")
    part = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            _execute(statement, values, FORMATS[output.suffix], file)
        part.replace(output)  # a reader sees the old file or the whole new one
    except OSError as error:
        exit_with("sql", BAD_INPUT, f"{output}: {error.strerror}")
    finally:
        part.unlink(missing_ok=True)
    echo(f"written: {output}", err=True)


def _statement(arguments: list[str]) -> tuple[str, dict[str, str]]:
    """Return the SQL of the arguments, or of standard input, and its parameters. Raises typer.Exit."""
    from drumline.infra.sqlshell.hints import unsupported_statement_hint

    texts, values = _options(arguments)
    if len(texts) > 1:
        exit_with("sql", BAD_INPUT, f"one query, please; did you forget quotes? (got {len(texts)} arguments)")
    if not texts and sys.stdin.isatty():
        exit_with(
            "sql", BAD_INPUT, 'no query; give one: drumline sql "SELECT ...", pipe it in, or see drumline sql --list'
        )
    statement = (texts[0] if texts else sys.stdin.read()).strip().rstrip(";").strip()
    if not statement:
        exit_with("sql", BAD_INPUT, "the query is empty")
    if advice := unsupported_statement_hint(statement):
        exit_with("sql", BAD_INPUT, advice)
    return _named(statement, values)


def _execute(statement: str, values: dict[str, str], output_format: str, file: BinaryIO | None = None) -> None:
    """Print the answer of a statement, or write it to `file`. Raises typer.Exit with FAILED."""
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.infra.sqlshell.hints import HINTS
    from drumline.infra.sqlshell.output import run_statement

    config = settings()
    try:
        with ensure_engine(config):
            client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
            has_rows = run_statement(client, statement, values, output_format, file)
            if not has_rows and values.get("job"):
                _note(client, values["job"], values.get("run", ""))
    except (ClickHouseFailed, StackError) as error:
        hint = HINTS.get(getattr(error, "code", 0), "")
        exit_with("sql", FAILED, f"{error}; {hint}" if hint else str(error))
    except BrokenPipeError:  # `| head` has ended
        sys.stderr.close()


def _options(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return (plain arguments, parameters): `--name value` and `--name=value` are parameters."""
    texts, values = list[str](), dict[str, str]()
    rest = iter(arguments)
    for text in rest:
        flag = re.match(r"--([A-Za-z]\w*)(?:=(.*))?$", text, re.DOTALL)
        if flag is None:
            texts.append(text)
            continue
        value = flag[2] if flag[2] is not None else next(rest, None)
        if value is None:
            exit_with("sql", BAD_INPUT, f"--{flag[1]} needs a value")
        values[flag[1]] = value or ""
    return texts, values


def _named(statement: str, values: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the SQL of a named query with all parameters; other SQL with those given."""
    from drumline.infra.clickhouse.queries import BadParameters, UnknownQuery, adhoc
    from drumline.infra.clickhouse.queries import query as find

    try:
        query = find(statement) if _NAME.fullmatch(statement) else adhoc(statement)
        return query.sql, query.values(values)
    except (UnknownQuery, BadParameters) as error:
        exit_with("sql", BAD_INPUT, str(error))


def _list(as_json: bool) -> None:
    from rich.table import Table

    from drumline.infra.clickhouse.queries import queries

    all_queries = queries().values()
    if as_json:
        for entry in all_queries:
            parameters = [
                {"name": p.name, "type": p.type, "default": p.default, "about": p.about} for p in entry.parameters
            ]
            line = {"name": entry.name, "question": entry.question, "theme": entry.theme, "parameters": parameters}
            echo(json.dumps(line))
        return
    view = Table("query", "question", "parameters (* required)", box=None, pad_edge=False)
    theme = ""
    for entry in all_queries:
        if entry.theme != theme:
            theme = entry.theme
            view.add_row(f"\n[bold]{theme}[/bold]")
        view.add_row(entry.name, entry.question, " ".join(p.name + "*" * (p.default is None) for p in entry.parameters))
    terminal_console(width=None if sys.stdout.isatty() else 160).print(view)


def _note(client: Client, job: str, run: str) -> None:
    """Print a note where a query has no rows because its job or run is not stored."""
    from drumline.infra.clickhouse.client import rows
    from drumline.infra.report.data import NoSuchRun, find_run

    try:
        find_run(lambda sql, parameters: rows(client, sql, parameters), job, run)
    except NoSuchRun as reason:
        echo(f"drumline sql: {reason}", err=True)
