"""`drumline status`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from drumline.infra.cli.exit_codes import FAILED
from drumline.infra.config.settings import settings

app = typer.Typer(add_completion=False)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False) -> None:
    """Show what runs, where, how much memory it takes, how often it was restarted, and how to connect.

    Exit code 0 when broker and engine answer, 1 when not (a script can wait on it). Secrets are never printed, only
    the files that hold them.
    """
    from drumline.infra.localstack import status as stack_status

    chosen = settings()
    found = stack_status.status(chosen)
    found["password_files"] = {user: str(path) for user, path in stack_status.password_files(chosen).items()}
    if as_json:
        typer.echo(json.dumps(found))
    else:
        show(found)
    if not all(entry.get("answers", True) for entry in found["processes"].values()):
        raise typer.Exit(FAILED)


def show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("", "state", "address", "pid", "memory", "up", "restarts", box=None, pad_edge=False)
    where = {"broker": found["addresses"]["kafka"], "engine": found["addresses"]["clickhouse_http"], "supervisor": ""}
    for name, entry in found["processes"].items():
        table.add_row(
            name,
            describe(name, entry, found),
            where[name],
            str(entry["pid"] or "-"),
            f"{entry['rss_mib']:.0f} MiB" if entry["pid"] else "-",
            f"{entry['uptime_s']:.0f} s" if entry["pid"] else "-",
            str(entry.get("restarts", "")),
        )
    console.print(table)
    console.print(f"\nlogs: {found['logs']}", soft_wrap=True)
    if found["password_files"]:
        native = found["addresses"]["clickhouse_native"]
        console.print(
            f"ClickHouse clients: {where['engine']} or {native} (native), password in the file:", soft_wrap=True
        )
        for user, path in found["password_files"].items():
            console.print(f"  {user:<8} {path}", soft_wrap=True)


def describe(name: str, entry: dict[str, Any], found: dict[str, Any]) -> str:
    """One or two words on a process."""
    if name == "supervisor":
        return "running" if found["running"] else "stopped"
    if entry["orphan"]:
        return "orphan (drumline up or down clears it)"
    if entry["pid"] is None and not entry["answers"]:
        return "restarting" if found["running"] else "stopped"
    if entry["pid"] is None:
        return "answers (not ours)"
    return "answers" if entry["answers"] else "does not answer"
