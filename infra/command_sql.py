"""`drumline sql`: questions to ClickHouse, read-only."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import uuid
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from drumline.infra.settings import settings

if TYPE_CHECKING:
    from drumline.infra.clickhouse import Client

app = typer.Typer(add_completion=False)
#: More rows than this are cut off in the table on a terminal, and it says so. --json and --csv stream everything.
SHOWN = 1_000
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}
_NAME = re.compile(r"[a-z][a-z0-9-]*")
#: What to do about an error, by ClickHouse's code, where its own sentence does not say.
HINTS = {
    81: "run `drumline migrate`",
    159: "ask for less (--since, --until, LIMIT), or for more time: SETTINGS max_execution_time = 300",
    160: "ask for less (--since, --until, LIMIT), or for more time: SETTINGS max_execution_time = 300",
    201: "this user's quota is used up; ask again when the interval named here has ended, or as another user",
    202: "too many queries at a time for this user; wait for one of them, or cancel one",
    241: "the query needs more memory than this user may use; ask for less, or aggregate before joining",
    396: "the result is too large; use LIMIT, aggregate, or ask with --csv in parts",
    457: "the value does not fit the parameter's type; `drumline sql --list` shows types",
    497: "this user may not do that; readers have tables (docs/tables.md) and the catalogue: docs/security.md",
}
_READS_ONLY = (
    "this only asks; rights and what runs on the server are for an administrator with ClickHouse's own client, or for "
    "`drumline roles`"
)
#: Statements that are no questions, by their first words: what to do instead. Writing ones ClickHouse itself refuses.
_NO_QUESTIONS = {
    r"SET": "a setting holds for one query: put it at its end, SELECT ... SETTINGS max_threads = 1",
    r"USE": "every call starts in DRUMLINE_CLICKHOUSE__DATABASE: write database.table",
    r"GRANT|REVOKE|SYSTEM|BEGIN|COMMIT|ROLLBACK": _READS_ONLY,
    r"(CREATE|ALTER|DROP)\s+(USER|ROLE|QUOTA|SETTINGS|PROFILE|ROW|POLICY)": _READS_ONLY,
}
_COMMENTS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*", re.DOTALL)


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
    """Ask ClickHouse. Nothing can be written; the engine is started if it is down. Ctrl-C cancels the query.

    A name asks a query of docs/cookbook.md; its parameters are options. Other SQL can have parameters too: {name:Type}.
    Tables and their columns: docs/tables.md. Times are UTC with nanoseconds, durations end in _ns. Examples:

    \b
      drumline sql --list
      drumline sql top-kernels --job demo --limit 5
      drumline sql "SELECT rank, count(), sum(duration_ns) / 1e9 AS gpu_s FROM kernels GROUP BY rank ORDER BY rank"
      drumline sql "SELECT count() FROM kernels WHERE job = {job:String}" --job demo
    """
    from drumline.infra.clickhouse import ClickHouseFailed, connect
    from drumline.infra.engine import ensure_engine
    from drumline.infra.state import StackError

    if as_json and as_csv:
        _fail(2, "--json or --csv, not both")
    if named:
        return _list(as_json)
    words, values = _options([*([query] if query is not None else []), *context.args])
    if len(words) > 1:
        _fail(2, f"one query, please; did you forget quotes? (got {len(words)} arguments)")
    if not words and sys.stdin.isatty():
        _fail(2, 'no query; give one: drumline sql "SELECT ...", pipe it in, or see drumline sql --list')
    statement = (words[0] if words else sys.stdin.read()).strip().rstrip(";").strip()
    if not statement:
        _fail(2, "the query is empty")
    if advice := _no_question(statement):
        _fail(2, advice)
    statement, values = _named(statement, values)
    if text:
        print(statement)
        return None
    config = settings()
    try:
        with ensure_engine(config):
            client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
            found = _ask(client, statement, values, "JSONEachRow" if as_json else "CSVWithNames" if as_csv else "")
            if not found and values.get("job"):
                _note(client, values["job"], values.get("run", ""))
    except (ClickHouseFailed, StackError) as error:
        hint = HINTS.get(getattr(error, "code", 0), "")
        _fail(1, f"{error}; {hint}" if hint else str(error))
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _no_question(statement: str) -> str:
    """What to do instead of a statement that has no answer; "" if it is a question, or ClickHouse can say why not."""
    start = statement[found.end() :] if (found := _COMMENTS.match(statement)) else statement
    fits = (said for words, said in _NO_QUESTIONS.items() if re.match(rf"(?:{words})\b", start, re.IGNORECASE))
    return next(fits, "")


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
            _fail(2, f"--{flag[1]} needs a value")
        values[flag[1]] = value or ""
    return words, values


def _named(statement: str, values: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The SQL of a named query and all its parameters; other SQL with those it has."""
    from drumline.infra.queries import BadParameters, UnknownQuery, adhoc
    from drumline.infra.queries import query as find

    try:
        found = find(statement) if _NAME.fullmatch(statement) else adhoc(statement)
        return found.sql, found.values(values)
    except (UnknownQuery, BadParameters) as error:
        _fail(2, str(error))


def _list(as_json: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from drumline.infra.queries import queries

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


def _fail(code: int, reason: str) -> NoReturn:
    print(f"drumline sql: {reason}", file=sys.stderr)
    raise typer.Exit(code)


def _note(client: Client, job: str, run: str) -> None:
    """An empty answer about a job or run that is not stored: which there are."""
    from drumline.infra.clickhouse import rows
    from drumline.infra.report_data import NoSuchRun, find_run

    try:
        find_run(lambda sql, parameters: rows(client, sql, parameters), job, run)
    except NoSuchRun as reason:
        print(f"drumline sql: {reason}", file=sys.stderr)


def _ask(client: Client, statement: str, values: dict[str, str], form: str) -> bool:
    """Run it and print; whether there were rows (True where a format of the query's own hides that).

    Raises Refused or Unavailable; KeyboardInterrupt after the query has been cancelled."""
    from drumline.infra.clickhouse import failure

    name = f"drumline-sql-{uuid.uuid4()}"
    limits = {
        "query_id": name,
        "cancel_http_readonly_queries_on_client_close": 1,
        "output_format_json_quote_64bit_integers": 0,
        "http_write_exception_in_output_format": 0,
    }
    try:
        if client.command("SELECT getSetting('readonly')") == 0:  # a user who may write; this program may not
            limits["readonly"] = 2
        own_format = re.search(r"\bFORMAT\s+\w+\s*$", statement, re.IGNORECASE) is not None
        if form or own_format:
            with client.raw_stream(
                statement, parameters=values, fmt=None if own_format else form, settings=limits
            ) as stream:
                lines = 0
                for part in iter(lambda: stream.read(1 << 16), b""):
                    sys.stdout.buffer.write(part)
                    lines += part.count(b"\n")
            sys.stdout.flush()
            return own_format or lines > (form == "CSVWithNames")
        limits |= {"max_result_rows": SHOWN + 1, "result_overflow_mode": "break"}
        answer = client.raw_query(statement, parameters=values, fmt="TSVWithNames", settings=limits)
        _table(answer)
        return answer.count(b"\n") > 1
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            client.command("KILL QUERY WHERE query_id = {id:String}", parameters={"id": name})
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        raise failure(error) from None


def cells(line: str) -> list[str]:
    """The cells of one line of TSV, unescaped: https://clickhouse.com/docs/interfaces/formats/TabSeparated. NULL is
    told from any text, because a backslash in text comes as two."""
    return [
        "NULL" if cell == r"\N" else re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), cell)
        for cell in line.split("\t")
    ]


def _table(answer: bytes) -> None:
    """Text exactly as ClickHouse writes it: no number or time loses digits on the way."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if not answer:
        print("done")
        return
    names, *found = answer.decode("utf-8", "replace").removesuffix("\n").split("\n")
    view = Table()
    for name in cells(names):
        view.add_column(Text(name))
    for line in found[:SHOWN]:
        view.add_row(*map(Text, cells(line)))
    Console(width=None if sys.stdout.isatty() else 100_000).print(view)
    if len(found) > SHOWN:
        print(f"the first {SHOWN} rows; use LIMIT, or --csv or --json for all")
