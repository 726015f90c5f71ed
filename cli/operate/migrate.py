"""`drumline migrate`: the ClickHouse schema."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Bring the ClickHouse schema and the retention of its tables up to date. A repetition changes nothing.

    It fails (exit 1) while another process migrates, and, before any change, where the database has the schema of
    another checkout, or where tables that you made replicated could not be migrated to the end. Retention is in days
    from when Kafka got a row, DRUMLINE_CLICKHOUSE__RETENTION='{"kernels": 7}'; 0 keeps rows for ever.

    All replicas of DRUMLINE_CLICKHOUSE__REPLICAS are migrated, one after the other.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.clickhouse.migrate import migrate as apply
    from drumline.infra.clickhouse.migration_lock import MigrationConflict

    replicas, done, database = of_each(settings()), list[str](), settings().clickhouse.database
    with exit_on_error("migrate", ClickHouseFailed, MigrationConflict, hint=False):
        for name, config in replicas.items():
            prefix = f"{name}: " if len(replicas) > 1 else ""
            steps = [prefix + step for step in apply(connect(config), config, dry_run=dry_run)]
            done += steps
            if not as_json:  # at once: the next replica may not answer
                for step in steps:
                    echo(("to do: " if dry_run else "done: ") + step)
    if as_json:
        echo(json.dumps({"database": database, "dry_run": dry_run, "steps": done}))
    elif not done:
        echo(f"{database} is up to date")
