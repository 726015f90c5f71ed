"""`drumline sql`: questions to ClickHouse, read-only."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.infra.settings import settings

if TYPE_CHECKING:
    from drumline.infra.clickhouse import Client

app = typer.Typer(add_completion=False)
#: More rows than this are cut off in the table on a terminal, and it says so. --json and --csv stream everything.
SHOWN = 1_000
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


@app.command()
def sql(
    query: Annotated[
        str | None, typer.Argument(help="One SQL statement; may end with FORMAT X. Standard input when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row, streamed.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header, streamed.")] = False,
) -> None:
    """Ask ClickHouse. Nothing can be written; the engine is started if it is down. Ctrl-C cancels the query.

    Tables: kernels, memcpys, collectives, steps, ranges, device_samples (a row an event); kernel_frequency,
    memcpy_bandwidth, stragglers, lateness (newest result of each window); processes, jobs; ledger (what became of each
    Kafka record). Times are UTC with nanoseconds, durations end in _ns. Example:

    \b
      drumline sql "SELECT rank, count(), sum(duration_ns) / 1e9 AS gpu_s FROM kernels GROUP BY rank ORDER BY rank"
    """
    from drumline.infra.clickhouse import ClickHouseFailed, connect
    from drumline.infra.engine import ensure_engine
    from drumline.infra.state import StackError

    if as_json and as_csv:
        _fail(2, "--json or --csv, not both")
    if query is None and sys.stdin.isatty():
        _fail(2, 'no query; give one: drumline sql "SELECT ...", or pipe it in')
    statement = (query if query is not None else sys.stdin.read()).strip().rstrip(";").strip()
    if not statement:
        _fail(2, "the query is empty")
    config = settings()
    try:
        with ensure_engine(config):
            client = connect(config, reader=True, timeout_s=600, database=config.clickhouse.database)
            _ask(client, statement, "JSONEachRow" if as_json else "CSVWithNames" if as_csv else "")
    except (ClickHouseFailed, StackError) as error:
        _fail(1, str(error))
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()


def _fail(code: int, reason: str) -> None:
    print(f"drumline sql: {reason}", file=sys.stderr)
    raise typer.Exit(code)


def _ask(client: Client, statement: str, form: str) -> None:
    """Run it and print. Raises Refused or Unavailable; KeyboardInterrupt after the query has been cancelled."""
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
            with client.raw_stream(statement, fmt=None if own_format else form, settings=limits) as stream:
                for part in iter(lambda: stream.read(1 << 16), b""):
                    sys.stdout.buffer.write(part)
            sys.stdout.flush()
            return
        limits |= {"max_result_rows": SHOWN + 1, "result_overflow_mode": "break"}
        _table(client.raw_query(statement, fmt="TSVWithNames", settings=limits))
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
