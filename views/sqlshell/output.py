"""Execution of one statement with its result on standard output: for people, or streamed in another format."""

from __future__ import annotations

import contextlib
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from typing import BinaryIO

from drumline.infra.clickhouse.client import Client, PermanentError, failure
from drumline.infra.runtime.terminal import LAYOUT, echo, escape_controls, terminal_console, write_stream
from drumline.views.sqlshell.spreadsheet import without_formulas

#: Maximum rows of the table, which states that it is cut. --json and --csv stream all rows.
SHOWN = 1_000
#: ClickHouse's format of files for spreadsheets.
CSV = "CSVWithNames"
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "b": "\b", "f": "\f", "0": "\0"}


def run_statement(
    client: Client, statement: str, values: dict[str, str], form: str, file: BinaryIO | None = None
) -> bool:
    """Run a statement and print its result in ClickHouse's format `form` ("": for people), or write it to `file`.

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
        own_format = has_format(statement)
        if form or own_format:
            query = statement if own_format else for_file(client, statement, values, form)
            with client.raw_stream(
                query, parameters=values, fmt=None if own_format else form, settings=limits | NAMES_LIMITS
            ) as stream:
                lines = 0

                def parts() -> Iterator[bytes]:
                    nonlocal lines
                    for part in iter(lambda: stream.read(1 << 16), b""):
                        lines += part.count(b"\n")
                        yield part

                shown = without_formulas(parts()) if form == CSV and not own_format else parts()
                if file is None:
                    write_stream(shown)
                else:
                    file.writelines(shown)
            return own_format or file is not None or lines > (form == CSV)
        limits |= {"max_result_rows": SHOWN + 1, "result_overflow_mode": "break"}
        answer = client.raw_query(statement, parameters=values, fmt="TSVWithNames", settings=limits)
        _show(answer)
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


#: Formats of files that would have enumerations as numbers.
NUMBERED = frozenset({"Arrow", "Parquet"})


def with_names(statement: str, types: Mapping[str, str]) -> str:
    """Return a SELECT with the names of enumerations in place of numbers; `types`: column -> ClickHouse type."""
    columns = [name for name, kind in types.items() if re.match(r"(LowCardinality\(|Nullable\()*Enum\d+\(", kind)]
    if not columns:
        return statement
    names = ["`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`" for name in columns]
    return f"SELECT * REPLACE ({', '.join(f'toString({name}) AS {name}' for name in names)}) FROM (\n{statement}\n)"


#: Keeps the order of rows in the statement of `with_names`.
NAMES_LIMITS = {"query_plan_remove_redundant_sorting": 0}


def for_file(client: Client, statement: str, values: dict[str, str], form: str) -> str:
    """Return the statement whose answer a file in this format has: with names, not numbers, of enumerations.

    Raises the client's errors.
    """
    if form not in NUMBERED:
        return statement
    try:
        answer = client.raw_query(f"DESCRIBE TABLE (\n{statement}\n)", parameters=values, fmt="TSV")
    except Exception as error:
        if isinstance(failure(error), PermanentError):  # SHOW, EXPLAIN, ...; an error of a SELECT comes again
            return statement
        raise
    return with_names(statement, {line[0]: line[1] for line in tsv_lines(answer) if len(line) > 1})


def has_format(statement: str) -> bool:
    """Return whether a statement ends with a FORMAT of its own."""
    return re.search(r"\bFORMAT\s+\w+\s*$", statement, re.IGNORECASE) is not None


def cells(line: str) -> list[str]:
    """Return the unescaped cells of a line of TSV (https://clickhouse.com/docs/interfaces/formats/TabSeparated).

    NULL differs from any text, because a backslash in text is doubled.
    """
    return [
        "NULL" if cell == r"\N" else re.sub(r"\\(.)", lambda m: _ESCAPED.get(m[1], m[1]), cell)
        for cell in line.split("\t")
    ]


def tsv_lines(answer: bytes) -> list[list[str]]:
    """Return the cells of all lines of an answer in TSV, the names of the columns first."""
    return [cells(line) for line in answer.decode("utf-8", "replace").removesuffix("\n").split("\n")]


def _show(answer: bytes) -> None:
    """Print text as ClickHouse writes it, so that no number or time loses digits; control characters are escaped.

    On a terminal a table, or the rows below each other where it is too wide. Elsewhere tab-separated lines.
    """
    if not answer:
        echo("done")
        return
    names, *rows = [[escape_controls(cell, LAYOUT) for cell in line] for line in tsv_lines(answer)]
    shown = rows[:SHOWN]
    if not sys.stdout.isatty():
        for line in [names, *shown]:
            echo("\t".join(escape_controls(cell) for cell in line))
    else:
        from rich.table import Table
        from rich.text import Text

        view = Table()
        for name in names:
            view.add_column(Text(name))
        for row in shown:
            view.add_row(*map(Text, row))
        terminal_console().print(view)
    if len(rows) > SHOWN:
        echo(f"the first {SHOWN} rows; use LIMIT, or --csv or --json for all", err=not sys.stdout.isatty())
