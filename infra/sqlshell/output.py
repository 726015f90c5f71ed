"""Execution of one statement with its result on standard output: a table, or streamed in another format."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from collections.abc import Iterator

from drumline.infra.clickhouse.client import Client, failure
from drumline.infra.runtime.terminal import LAYOUT, echo, escape_controls, terminal_console, write_stream

#: Maximum rows of the table, which states that it is cut. --json and --csv stream all rows.
SHOWN = 1_000
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def run_statement(client: Client, statement: str, values: dict[str, str], form: str) -> bool:
    """Run a statement and print its result in ClickHouse's format `form` ("": a table).

    Returns whether there were rows; True where the query has a FORMAT of its own.
    Raises PermanentError or TransientError; KeyboardInterrupt after the query has been cancelled."""
    name = f"drumline-sql-{uuid.uuid4()}"
    limits = {
        "query_id": name,
        "cancel_http_readonly_queries_on_client_close": 1,
        "output_format_json_quote_64bit_integers": 0,
        "http_write_exception_in_output_format": 0,
    }
    try:
        if client.command("SELECT getSetting('readonly')") == 0:  # this user may write; this program must not
            limits["readonly"] = 2
        own_format = re.search(r"\bFORMAT\s+\w+\s*$", statement, re.IGNORECASE) is not None
        if form or own_format:
            with client.raw_stream(
                statement, parameters=values, fmt=None if own_format else form, settings=limits
            ) as stream:
                lines = 0

                def parts() -> Iterator[bytes]:
                    nonlocal lines
                    for part in iter(lambda: stream.read(1 << 16), b""):
                        lines += part.count(b"\n")
                        yield part

                write_stream(parts())
            return own_format or lines > (form == "CSVWithNames")
        limits |= {"max_result_rows": SHOWN + 1, "result_overflow_mode": "break"}
        answer = client.raw_query(statement, parameters=values, fmt="TSVWithNames", settings=limits)
        _table(answer)
        rows = answer.count(b"\n") - 1
        if 0 < rows <= SHOWN and str(rows) == values.get("limit"):
            echo(f"{rows} rows, the number of --limit; there may be more")
        return rows > 0
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            client.command("KILL QUERY WHERE query_id = {id:String}", parameters={"id": name})
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        raise failure(error) from None


def cells(line: str) -> list[str]:
    """Return the unescaped cells of a line of TSV (https://clickhouse.com/docs/interfaces/formats/TabSeparated).

    NULL differs from any text, because a backslash in text is doubled.
    """
    return [
        "NULL" if cell == r"\N" else re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), cell)
        for cell in line.split("\t")
    ]


def _table(answer: bytes) -> None:
    """Print text as ClickHouse writes it, so that no number or time loses digits; control characters are escaped."""
    from rich.table import Table
    from rich.text import Text

    if not answer:
        echo("done")
        return
    names, *lines = answer.decode("utf-8", "replace").removesuffix("\n").split("\n")
    view = Table()
    for name in cells(names):
        view.add_column(Text(escape_controls(name, LAYOUT)))
    for line in lines[:SHOWN]:
        view.add_row(*(Text(escape_controls(cell, LAYOUT)) for cell in cells(line)))
    terminal_console(width=None if sys.stdout.isatty() else 100_000).print(view)
    if len(lines) > SHOWN:
        echo(f"the first {SHOWN} rows; use LIMIT, or --csv or --json for all")
