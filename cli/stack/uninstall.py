"""`drumline uninstall`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def uninstall(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove what drumline left on this machine beside its Python packages, and name what is left.

    It lists the local stack's state (data, logs, passwords), Kafka's jars and the spool, each with its size, asks,
    stops what runs, and removes them. Servers elsewhere and files of other users are not touched. A folder that you
    chose, and whose name has no "drumline", is named and stays.

    Exit codes: 0 removed, or nothing is left. 1 it could not be removed. 2 not confirmed.
    """
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack import stack

    config = settings()
    leftovers = {
        path: purpose
        for path, purpose in (
            (config.local.state, "state of the local stack: stored data, logs, passwords"),
            (config.local.cache, "Kafka's jars"),
            (config.spool.root, "spool: records that no agent has published"),
        )
        if _is_own(path)
    }
    kept = [path for path in leftovers if "drumline" not in path.name]
    for path in kept:
        del leftovers[path]
    for path, purpose in leftovers.items():
        echo(f"{path}  {_megabytes(path):,.0f} MB  {purpose}")
    if not leftovers:
        echo("nothing is left of the local stack and the spool")
    elif not yes and not sys.stdin.isatty():
        exit_with("uninstall", BAD_INPUT, "confirm with --yes")
    elif not yes and not typer.confirm("Stop what runs, and remove all of this?", err=True):
        raise typer.Exit(BAD_INPUT)
    if leftovers:
        with exit_on_error("uninstall", StackError):
            stack.down(config)
        with exit_on_error("uninstall", OSError):
            for path in leftovers:
                shutil.rmtree(path)
        if any(path.exists() for path in leftovers):
            exit_with("uninstall", FAILED, "a program still writes there: `drumline agent` or a recorded job?")
    for path in kept:
        echo(f"{path} stays: remove it yourself if nothing else is in it")
    echo("then: drumline hook remove, where it was installed; and pipx uninstall drumline, or pip uninstall drumline")


def _is_own(path: Path) -> bool:
    """Return whether a folder is there and is this user's."""
    try:
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    except OSError:
        return False


def _megabytes(path: Path) -> float:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir()) / 1e6
