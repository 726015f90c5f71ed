"""`drumline cluster`: one database over all servers of a ClickHouse cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Make one database over all servers of a ClickHouse cluster."
)


@app.callback()
def cluster() -> None:
    """Have `distribute` as a command of its own: typer would make a single one the group itself."""


@app.command()
def distribute(
    name: Annotated[str, typer.Argument(metavar="CLUSTER", help="As in the server's remote_servers.")],
    into: Annotated[str, typer.Option(help="Database of the Distributed tables.")] = "gpu_all",
) -> None:
    """Create Distributed tables and views over the servers of a cluster, in the database --into.

    Run it on each server, after `drumline migrate` there; a repetition changes nothing. Then sinks and readers use the
    database --into (DRUMLINE_CLICKHOUSE__DATABASE): the rows of a rank stay on one server. A cluster with several
    replicas of a shard needs internal_replication = true, and more: docs/guide/replicas.md.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.clickhouse.distributed import distribute as create
    from drumline.infra.clickhouse.roles import BadName

    config = settings()
    with exit_on_error("cluster", BadName, code=BAD_INPUT), exit_on_error("cluster", ClickHouseFailed):
        names = create(connect(config), config.clickhouse.database, name, into)
    echo(f"done: {len(names)} tables and views of {into} over cluster {name}")
