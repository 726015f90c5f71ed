"""`drumline uninstall`."""

from __future__ import annotations

import os
import re
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)
#: Entries that drumline makes in a state directory, in the folder of jars, and in a spool's root.
STATE = re.compile(
    r"lock|command\.lock|engine\.users|(supervisor|plan|children)\.json|programs|logs|secrets|kafka.*|clickhouse.*|"
    r"sql_history|demo-report\.html|stream"
)
JARS = re.compile(r"(kafka|zookeeper)-.*|kafka\.lock")
SPOOL = re.compile(r"\.(agent|rings|control|waiting).*|policy|[0-9a-f]{8}-[0-9a-f-]{20,}")


@app.command()
def uninstall(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    jars: Annotated[
        bool, typer.Option("--jars", help="Also Kafka's jars, which other stacks of yours use too.")
    ] = False,
) -> None:
    """Remove what drumline left on this machine beside its Python packages, and name what is left.

    It lists what it made, each with its size: the local stack's state (data, logs, passwords), the spool, and with
    --jars the folder of Kafka's jars. Then it asks, stops what runs, and removes that. Files of others stay and are
    named: other users' and those that drumline did not make.

    Exit codes: 0 removed, or nothing is left. 1 it could not be removed. 2 not confirmed, or an agent runs.
    """
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack import stack
    from drumline.producers.agent.cursor import is_served

    config = settings()
    folders = {
        config.local.state: ("state of the local stack: stored data, logs, passwords", STATE),
        **({config.local.cache: ("Kafka's jars", JARS)} if jars else {}),
        config.spool.root: ("spool: records that no agent has published", SPOOL),
    }
    leftovers = {path: _own_entries(path, names) for path, (_, names) in folders.items()}
    for path, entries in leftovers.items():
        if entries:
            echo(f"{path}  {sum(map(_megabytes, entries)):,.0f} MB  {folders[path][0]}")
    if not any(leftovers.values()):
        echo("nothing of this user is left of the local stack and the spool")
    elif not yes and not sys.stdin.isatty():
        exit_with("uninstall", BAD_INPUT, "confirm with --yes")
    elif not yes and not typer.confirm("Stop what runs, and remove all of this?", err=True):
        raise typer.Exit(BAD_INPUT)
    else:
        with exit_on_error("uninstall", StackError):
            stack.down(config)
        if is_served(config.spool.root):
            exit_with("uninstall", BAD_INPUT, f"an agent still publishes {config.spool.root}: stop it first")
        with exit_on_error("uninstall", OSError):
            for path, (_, names) in folders.items():  # once more: the stop wrote a lock
                for entry in _own_entries(path, names):
                    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    for path in folders:
        with suppress(OSError):
            path.rmdir()
        if path.exists():
            echo(f"{path} stays: it holds files that are other users', or not drumline's")
    if not jars and (size := sum(map(_megabytes, _own_entries(config.local.cache, JARS)))):
        echo(f"{config.local.cache}  {size:,.0f} MB  Kafka's jars stay for other stacks of yours; --jars removes them")
    echo("then: drumline hook remove, where it was installed; and pipx uninstall drumline, or pip uninstall drumline")


def _own_entries(path: Path, names: re.Pattern[str]) -> list[Path]:
    """Return the entries of a folder that are this user's and have names that drumline gives."""
    try:
        entries = [] if path.is_symlink() else sorted(path.iterdir())
    except OSError:
        return []
    return [entry for entry in entries if names.fullmatch(entry.name) and entry.lstat().st_uid == os.getuid()]


def _megabytes(entry: Path) -> float:
    files = [entry] if not entry.is_dir() or entry.is_symlink() else entry.rglob("*")
    return sum(file.lstat().st_size for file in files if not file.is_dir()) / 1e6
