"""`drumline setup`: topics, tables and roles of a new platform, or of a new version, by one command."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.operate import migrate, roles, topics
from drumline.cli.operate.roles import Analyst, Cluster, Grafana, Page, Writer
from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def setup(
    cluster: Cluster = "",
    writer: Writer = "",
    analyst: Analyst = "",
    page: Page = "",
    grafana: Grafana = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
) -> None:
    """Prepare Kafka and ClickHouse for drumline: `topics apply`, `migrate` and `roles apply`, in this order.

    It ends at the first that fails, with its message and exit code. A repetition changes nothing. The local engine has
    its roles built in. On DRUMLINE_CLICKHOUSE__URL roles need a user with access_management; name your users to give
    them a role.
    """
    echo("Kafka: topics")
    topics.apply(dry_run=dry_run, partitions=None, check=False, as_json=False)
    echo("ClickHouse: tables")
    migrate.migrate(dry_run=dry_run, as_json=False)
    if settings().clickhouse.url:
        echo("ClickHouse: roles")
        users = {"writer": writer, "analyst": analyst, "page": page, "grafana": grafana}
        roles.apply(cluster=cluster, dry_run=dry_run, **users)
    else:
        echo("ClickHouse: the local engine has its roles built in")
