"""`drumline migrate`: the ClickHouse schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from drumline.infra.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    cluster: Annotated[str, typer.Option(help="Cluster of the Distributed tables; default: none are created.")] = "",
    into: Annotated[str, typer.Option(help="Database of the Distributed tables.")] = "gpu_all",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Bring the ClickHouse schema and the retention of its tables up to date. A repetition changes nothing.

    It fails (exit 1) when a migration's file changed after it was applied, or while another process migrates. Retention
    is in days of event time, DRUMLINE_CLICKHOUSE__RETENTION__KERNELS=7 and so on; 0 keeps rows for ever.

    With --cluster it also creates Distributed tables over the servers of a cluster, in the database --into. Run it on
    each server.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.clickhouse.distributed import distribute
    from drumline.infra.clickhouse.migrate import migrate as apply
    from drumline.infra.clickhouse.migration_lock import MigrationConflict
    from drumline.infra.clickhouse.roles import BadName

    config = settings()
    with (
        exit_on_error("migrate", BadName, code=BAD_INPUT),
        exit_on_error("migrate", ClickHouseFailed, MigrationConflict, hint=False),
    ):
        client = connect(config)
        done = apply(client, config, dry_run=dry_run)
        if cluster and not dry_run:
            done.append(
                f"{len(distribute(client, config.clickhouse.database, cluster, into))} tables and views of {into}"
            )
    if as_json:
        echo(json.dumps({"database": config.clickhouse.database, "dry_run": dry_run, "steps": done}))
        return
    for step in done:
        echo(("to do: " if dry_run else "done: ") + step)
    if not done:
        echo(f"{config.clickhouse.database} is up to date")
