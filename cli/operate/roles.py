"""`drumline roles`: the roles of a ClickHouse server."""

from __future__ import annotations

from typing import Annotated

import typer

from drumline.cli.console import exit_with
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)
Cluster = Annotated[str, typer.Option(help="create them on all nodes of this cluster")]
Writer = Annotated[str, typer.Option(help="a user to get the role of migrations, sinks and audit")]
Analyst = Annotated[str, typer.Option(help="a user to get the role of readers")]
Page = Annotated[str, typer.Option(help="a user to get the role of the web page")]
Grafana = Annotated[str, typer.Option(help="a user to get the role of Grafana's data source")]


@app.callback(invoke_without_command=True)
def roles(
    context: typer.Context,
    cluster: Cluster = "",
    writer: Writer = "",
    analyst: Analyst = "",
    page: Page = "",
    grafana: Grafana = "",
) -> None:
    """Print the SQL that creates the roles writer, analyst, page and grafana, with limits and quotas.

    Users and passwords are yours: name existing users to give them a role. `drumline roles apply` executes it. The
    local engine has these rights built in (docs/guide/local-stack.md) and takes no such SQL.
    """
    if context.invoked_subcommand is None:
        for statement in _statements(cluster, writer=writer, analyst=analyst, page=page, grafana=grafana):
            echo(statement + ";")


@app.command()
def apply(
    cluster: Cluster = "",
    writer: Writer = "",
    analyst: Analyst = "",
    page: Page = "",
    grafana: Grafana = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the statements without running them")] = False,
) -> None:
    """Execute the SQL on DRUMLINE_CLICKHOUSE__URL and all replicas. DRUMLINE_CLICKHOUSE__USER needs access_management.

    A repetition changes nothing.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, command, connect
    from drumline.infra.clickhouse.error_codes import ErrorCode

    statements = _statements(cluster, writer=writer, analyst=analyst, page=page, grafana=grafana)
    if not settings().clickhouse.url:
        exit_with("roles", BAD_INPUT, "set DRUMLINE_CLICKHOUSE__URL; the local engine has its roles built in")
    if dry_run:
        for statement in statements:
            echo("to do: " + " ".join(statement.split()))
        return
    replicas = of_each(settings())
    try:
        for name, config in replicas.items():
            client = connect(config)
            for statement in statements:
                command(client, statement)
                echo(("done: " if len(replicas) == 1 else f"done: {name}: ") + " ".join(statement.split()))
    except ClickHouseFailed as error:
        hint = "; this user needs access_management, or the grants to create roles, profiles and quotas"
        is_denied = error.code in (ErrorCode.ACCESS_DENIED, ErrorCode.ACCESS_STORAGE_FOR_INSERTION_NOT_FOUND)
        exit_with("roles", FAILED, f"{error}{hint if is_denied else ''}")


def _statements(cluster: str, **users: str) -> list[str]:
    from drumline.infra.clickhouse.roles import BadName
    from drumline.infra.clickhouse.roles import statements as role_statements

    try:
        chosen = {role: user for role, user in users.items() if user}
        return role_statements(settings().clickhouse.database, cluster, chosen)
    except BadName as error:
        exit_with("roles", BAD_INPUT, str(error))
