"""`drumline migrate`: the ClickHouse schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from drumline.infra.cli.console import exit_on_error
from drumline.infra.config.settings import settings

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Bring the ClickHouse schema up to date, and retention to what the settings say. Safe to run again.

    Refuses (exit 1) when a migration's file changed after it was applied, or when somebody else migrates. Retention is
    days of event time, DRUMLINE_CLICKHOUSE__RETENTION__KERNELS=7 and so on; 0 keeps for ever.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.clickhouse.migrate import migrate as apply
    from drumline.infra.clickhouse.migration_lock import MigrationConflict

    config = settings()
    with exit_on_error("migrate", ClickHouseFailed, MigrationConflict):
        done = apply(connect(config), config, dry_run=dry_run)
    if as_json:
        print(json.dumps({"database": config.clickhouse.database, "dry_run": dry_run, "steps": done}))
        return
    for step in done:
        print(("to do: " if dry_run else "done: ") + step)
    if not done:
        print(f"{config.clickhouse.database} is up to date")
