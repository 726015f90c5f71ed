"""`drumline top`: a live view of the running jobs."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from drumline.infra.runtime.terminal import echo, terminal_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from drumline.infra.config.settings import Settings
    from drumline.views.top.data import TopSnapshot
    from drumline.views.top.keys import ViewState

#: Time after which a terminal of another size is drawn again; s.
RESIZE_S = 0.25

app = typer.Typer(add_completion=False)


@app.command()
def top(
    job: Annotated[
        str, typer.Option(help="Only this job; default: all, details of the one with the newest data.")
    ] = "",
    interval: Annotated[float, typer.Option(min=0.2, help="Between two queries; s.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print once and end; also when the output is no terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per query, a line each.")] = False,
) -> None:
    """Watch the jobs: ranks, step times, lateness, verdicts, what was dropped, and how fresh the data are.

    It reads the stored rows as the read-only user. The length of a bar chart is the part of a step by which a rank was
    late in the newest window. A rank may be late because it waited for another; the verdict has the cause.

    Keys: q ends it, arrows or j and k select a job, enter shows all its ranks, s changes their order (lateness first),
    ? explains.

    Exit codes: 0 printed once, or q. 1 ClickHouse does not answer (a live view shows it and retries). 2 no such job
    with --once (a live view waits for it). 130 Ctrl-C.
    """

    from drumline.infra.clickhouse.client import ClickHouseFailed, with_hint
    from drumline.infra.config.state_dir import StackError
    from drumline.views.top.view import PIPE

    config, console = settings(), terminal_console()
    try:
        seen = _query(config, job)
        if seen.missing and (once or not console.is_terminal):
            exit_with("top", BAD_INPUT, seen.missing)
        if as_json:
            _lines(config, job, interval, once, seen)
        elif once or not console.is_terminal:
            console = console if console.is_terminal else terminal_console(width=PIPE[0], height=PIPE[1])
            console.print(_shown(console, config, seen))
        else:
            _live(config, console, job, interval, seen)
    except (ClickHouseFailed, StackError) as error:
        exit_with("top", FAILED, with_hint(error))
    except BrokenPipeError:  # `| head` has ended
        sys.stderr.close()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _query(config: Settings, job: str, selected: str = "") -> TopSnapshot:
    """Query with a new connection, which works after a restart or a new address of the server."""
    from drumline.infra.clickhouse.client import connect, rows
    from drumline.views.top.data import snapshot

    client = connect(config, reader=True, timeout_s=10, database=config.clickhouse.database)
    try:
        return snapshot(lambda sql, parameters: rows(client, sql, parameters), job, selected)
    finally:
        client.close()


def _shown(
    console: Console,
    config: Settings,
    seen: TopSnapshot,
    interval: float = 0,
    error: str = "",
    state: ViewState | None = None,
) -> RenderableType:
    from drumline.views.top.keys import ViewState
    from drumline.views.top.view import view

    now = f"{datetime.now(UTC):%H:%M:%S} UTC"
    live = f"  every {interval:g} s, ? for keys" if interval else ""
    header = f"drumline top  {now}  {config.clickhouse_url}{live}"
    state = state or ViewState(web_page=config.serve.web_page)
    return view(seen, console.width, console.height, header, error, state)


def _lines(config: Settings, job: str, interval: float, once: bool, seen: TopSnapshot) -> None:
    while True:
        echo(json.dumps(seen.as_json()), flush=True)
        if once:
            return
        time.sleep(interval)
        seen = _query(config, job)


def _live(config: Settings, console: Console, job: str, interval: float, seen: TopSnapshot) -> None:
    from rich.live import Live

    from drumline.infra.clickhouse.client import ClickHouseFailed, with_hint
    from drumline.views.top.keys import ViewState, key_reader, press

    state, problem, size = ViewState(web_page=config.serve.web_page), "", console.size
    with (
        key_reader() as read_key,
        Live(
            _shown(console, config, seen, interval, problem, state), console=console, screen=True, auto_refresh=False
        ) as live,
    ):
        due = time.monotonic() + interval
        while True:
            key = read_key(min(RESIZE_S, max(0.0, due - time.monotonic())))
            if key:
                pressed = press(state, key, [row["job"] for row in seen.jobs])
                if pressed is None:
                    return
                due = due if pressed.selected == state.selected else 0.0
                state = pressed
            if time.monotonic() >= due:
                try:
                    seen, problem = _query(config, job, state.selected), ""
                except ClickHouseFailed as error:
                    problem = with_hint(error)
                due = time.monotonic() + interval
            elif not key and console.size == size:
                continue
            size = console.size
            live.update(_shown(console, config, seen, interval, problem, state), refresh=True)
