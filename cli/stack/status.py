"""`drumline status`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import FAILED
from drumline.infra.runtime.terminal import echo, terminal_console

app = typer.Typer(add_completion=False)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Show processes with address, memory, uptime and restarts, and how to connect.

    Exit code 0 when broker and engine answer and drumline's own programs are ready, 1 when not (a script can wait on
    it). Secrets are never printed, only the files that hold them.
    """
    from drumline.infra.localstack import status as stack_status

    chosen = settings()
    state = stack_status.status(chosen)
    state["password_files"] = {user: str(path) for user, path in stack_status.password_files(chosen).items()}
    if as_json:
        echo(json.dumps(state))
    else:
        show(state)
    if not all(entry.get("answers", True) for entry in state["processes"].values()):
        raise typer.Exit(FAILED)


def show(state: dict[str, Any]) -> None:
    """Print the state as a table."""
    from rich.table import Table

    console = terminal_console(highlight=False)
    table = Table("", "state", "address", "pid", "memory", "up", "restarts", box=None, pad_edge=False)
    where = {"broker": state["addresses"]["kafka"], "engine": state["addresses"]["clickhouse_http"],
             "serve": state["page"]}  # fmt: skip
    for name, entry in state["processes"].items():
        table.add_row(
            name,
            describe(name, entry, state),
            where.get(name, ""),
            str(entry["pid"] or "-"),
            f"{entry['rss_mib']:.0f} MiB" if entry["pid"] else "-",
            f"{entry['uptime_s']:.0f} s" if entry["pid"] else "-",
            str(entry.get("restarts", "")),
        )
    console.print(table)
    for sentence in state["full"]:
        console.print(f"\n{sentence}", soft_wrap=True)
    console.print(f"\nlogs: {state['logs']}", soft_wrap=True)
    if state["password_files"]:
        native = state["addresses"]["clickhouse_native"]
        console.print(
            f"ClickHouse clients: {where['engine']} or {native} (native), password in the file:",
            soft_wrap=True,
        )
        for user, path in state["password_files"].items():
            console.print(f"  {user:<8} {path}", soft_wrap=True)
        if state["processes"]["engine"]["answers"]:
            console.print(f"ClickHouse in a browser: {where['engine']}/play", soft_wrap=True)


def describe(name: str, entry: dict[str, Any], state: dict[str, Any]) -> str:
    """Return a short description of a process's state."""
    if name == "supervisor":
        return "running" if state["running"] else "stopped"
    if name == "programs":
        return "orphan (drumline up or down clears it)" if entry["orphan"] else "running"
    if entry["orphan"]:
        return "orphan (drumline up or down clears it)"
    if entry["pid"] is None and not entry["answers"]:
        return "restarting" if state["running"] else "stopped"
    if entry["pid"] is None:
        return "answers (foreign)"
    return "answers" if entry["answers"] else "does not answer"
