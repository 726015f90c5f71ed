"""`drumline sql`: questions to ClickHouse, read-only."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.infra.cli.console import exit_with
from drumline.infra.cli.exit_codes import BAD_INPUT, FAILED
from drumline.infra.config.settings import settings

if TYPE_CHECKING:
    from drumline.infra.clickhouse.client import Client

app = typer.Typer(add_completion=False)
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
    text: Annotated[bool, typer.Option("--print", help="Print the named query's SQL; do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, streamed.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header, streamed.")] = False,
) -> None:
    """Query ClickHouse, read-only. The local engine is started if it is down. Ctrl-C cancels the query.

    A name runs a query of docs/reference/cookbook.md; its parameters are options. Other SQL can have parameters too:
    {name:Type}. Tables and columns: docs/reference/tables.md. Times are UTC in nanoseconds, durations end in _ns.
    Examples:

    \b
      drumline sql --list
      drumline sql top-kernels --job demo --limit 5
      drumline sql "SELECT rank, count(), sum(duration_ns) / 1e9 AS gpu_s FROM kernels GROUP BY rank ORDER BY rank"
      drumline sql "SELECT count() FROM kernels WHERE job = {job:String}" --job demo
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.infra.sqlshell.hints import HINTS, unsupported_statement_hint
    from drumline.infra.sqlshell.output import run_statement

    if as_json and as_csv:
        exit_with("sql", BAD_INPUT, "--json or --csv, not both")
    if named:
        return _list(as_json)
    words, values = _options([*([query] if query is not None else []), *context.args])
    if len(words) > 1:
        exit_with("sql", BAD_INPUT, f"one query, please; did you forget quotes? (got {len(words)} arguments)")
    if not words and sys.stdin.isatty():
        exit_with(
            "sql", BAD_INPUT, 'no query; give one: drumline sql "SELECT ...", pipe it in, or see drumline sql --list'
        )
    statement = (words[0] if words else sys.stdin.read()).strip().rstrip(";").strip()
    if not statement:
        exit_with("sql", BAD_INPUT, "the query is empty")
    if advice := unsupported_statement_hint(statement):
        exit_with("sql", BAD_INPUT, advice)
    statement, values = _named(statement, values)
    if text:
        print(statement)
        return None
    config = settings()
    try:
        with ensure_engine(config):
            client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
            found = run_statement(
                client, statement, values, "JSONEachRow" if as_json else "CSVWithNames" if as_csv else ""
            )
            if not found and values.get("job"):
                _note(client, values["job"], values.get("run", ""))
    except (ClickHouseFailed, StackError) as error:
        hint = HINTS.get(getattr(error, "code", 0), "")
        exit_with("sql", FAILED, f"{error}; {hint}" if hint else str(error))
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _options(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """(plain words, parameters): `--name value` and `--name=value` are parameters."""
    words, values = list[str](), dict[str, str]()
    rest = iter(arguments)
    for word in rest:
        flag = re.match(r"--([A-Za-z]\w*)(?:=(.*))?$", word, re.DOTALL)
        if flag is None:
            words.append(word)
            continue
        value = flag[2] if flag[2] is not None else next(rest, None)
        if value is None:
            exit_with("sql", BAD_INPUT, f"--{flag[1]} needs a value")
        values[flag[1]] = value or ""
    return words, values


def _named(statement: str, values: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The SQL of a named query and all its parameters; other SQL with those it has."""
    from drumline.infra.clickhouse.queries import BadParameters, UnknownQuery, adhoc
    from drumline.infra.clickhouse.queries import query as find

    try:
        found = find(statement) if _NAME.fullmatch(statement) else adhoc(statement)
        return found.sql, found.values(values)
    except (UnknownQuery, BadParameters) as error:
        exit_with("sql", BAD_INPUT, str(error))


def _list(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from drumline.infra.clickhouse.queries import queries

    found = queries().values()
    if as_json:
        for each in found:
            parameters = [
                {"name": p.name, "type": p.type, "default": p.default, "about": p.about} for p in each.parameters
            ]
            line = {"name": each.name, "question": each.question, "theme": each.theme, "parameters": parameters}
            print(json.dumps(line))
        return
    view = Table("query", "asks", "parameters (* must be given)", box=None, pad_edge=False)
    theme = ""
    for each in found:
        if each.theme != theme:
            theme = each.theme
            view.add_row(f"\n[bold]{theme}[/bold]")
        view.add_row(each.name, each.question, " ".join(p.name + "*" * (p.default is None) for p in each.parameters))
    Console(width=None if sys.stdout.isatty() else 160).print(view)


def _note(client: Client, job: str, run: str) -> None:
    """An empty answer about a job or run that is not stored: which there are."""
    from drumline.infra.clickhouse.client import rows
    from drumline.infra.report.data import NoSuchRun, find_run

    try:
        find_run(lambda sql, parameters: rows(client, sql, parameters), job, run)
    except NoSuchRun as reason:
        print(f"drumline sql: {reason}", file=sys.stderr)
