"""The interactive `drumline sql`: a loop of lines, which outlives every error. prompt_toolkit edits the lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.infra.clickhouse.client import ClickHouseFailed, Client, rows
from drumline.infra.clickhouse.queries import queries
from drumline.infra.runtime.terminal import echo, terminal_console
from drumline.views.sqlshell.completion import Catalogue, completions
from drumline.views.sqlshell.questions import question_help
from drumline.views.sqlshell.request import BadRequest, Request, parse_request

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

HELP = r"""SELECT ...;                   a statement, over several lines, until the semicolon
QUESTION --job JOB            a question of the cookbook; Tab completes its parameters
help QUESTION                 its parameters and an example; `help questions` names all
\d, \d TABLE                  the tables; the columns of one
Tab completes. Up and Down: history. Ctrl-C clears the line or cancels the query. \q or Ctrl-D ends."""
COLUMNS = "SELECT table, name FROM system.columns WHERE database = currentDatabase() ORDER BY table, position"
FUNCTIONS = "SELECT name FROM system.functions WHERE alias_to = '' ORDER BY name"
DESCRIBE = (
    "SELECT name, type, comment FROM system.columns WHERE database = currentDatabase() AND table = {table:String} "
    "ORDER BY position"
)
TABLES = (
    "SELECT name, any(t.comment) AS about FROM system.tables AS t WHERE database = currentDatabase() GROUP BY name "
    "ORDER BY name"
)
#: Runs a request and prints its answer. Raises what the loop prints: errors of requests and servers.
Execute = Callable[[Request], None]


def load_catalogue(client: Client) -> Catalogue:
    """Return the names that can be completed; only the questions where the server does not list its own."""
    try:
        tables: dict[str, list[str]] = {}
        for row in rows(client, COLUMNS):
            tables.setdefault(row["table"], []).append(row["name"])
        return Catalogue(queries(), tables, [row["name"] for row in rows(client, FUNCTIONS)])
    except ClickHouseFailed:
        return Catalogue(queries())


def is_whole(text: str) -> bool:
    """Return whether Enter runs the text: it ends with a semicolon, or is a command or a question."""
    line = text.strip()
    first = line.partition(" ")[0]
    return not line or line.endswith(";") or line[0] == "\\" or first in queries() or first in ("help", "quit", "exit")


def run_line(text: str, execute: Execute, width: int = 80) -> bool:
    """Run what a person has entered. Return False at the end of the session. Raises what `execute` raises."""
    line = text.strip().rstrip(";").strip()
    first, _, rest = line.partition(" ")
    rest = rest.strip()
    if first in ("\\q", "quit", "exit"):
        return False
    if not line:
        return True
    if first == "help" and rest == "questions":
        echo("\n".join(f"{name:<22}{query.question}" for name, query in queries().items()))
    elif first == "help":
        echo(question_help(queries()[rest], width) if rest in queries() else HELP)
    elif first == "\\d":
        execute(parse_request([DESCRIBE, "--table", rest] if rest else [TABLES]))
    elif first in queries() and {"-h", "--help"} & set(rest.split()):
        echo(question_help(queries()[first], width))
    else:
        execute(parse_request(_split(line) if first in queries() else [line]))
    return True


def _split(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise BadRequest(f"{error}: {line}") from None


def loop(read: Callable[[], str], execute: Execute, errors: tuple[type[Exception], ...]) -> None:
    """Read and run lines until the end. `errors` are printed; Ctrl-C clears a line, or ends a query only."""
    while True:
        try:
            if not run_line(read(), execute, terminal_console().width):
                return
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        except errors as error:
            echo(str(error), err=True)


def prompt_session(history: Path, catalogue: Catalogue) -> PromptSession[str]:
    """Return the editor of lines; its history is kept in a file that only the user reads."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.history import FileHistory
    from prompt_toolkit.key_binding import KeyBindings

    class Names(Completer):
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            part, names = completions(document.text_before_cursor, catalogue)
            return (Completion(name, start_position=-len(part)) for name in names[:200])

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if is_whole(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    history.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
    history.chmod(0o600)
    return PromptSession(
        history=FileHistory(str(history)),
        completer=Names(),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=lambda width, *_: ".".rjust(width - 1) + " ",
        key_bindings=keys,
    )
