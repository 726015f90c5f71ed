"""`drumline up`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import FAILED, OK
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)


@app.command()
def up(
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return when all of it answers.")] = True,
    servers: Annotated[
        bool, typer.Option("--servers", help="Only Kafka and ClickHouse; you run drumline's programs yourself.")
    ] = False,
    bootstrap: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Use this Kafka; start only the ClickHouse engine.")
    ] = "",
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Run in the foreground until a signal (systemd, containers).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as JSON.")] = False,
) -> None:
    """Start the whole platform on this machine, on loopback: Kafka, ClickHouse, worker, sink, agent, exporter, page.

    Apache Kafka is one small JVM (KRaft), ClickHouse the engine of a wheel. Topics and tables are created. A detached
    supervisor runs and restarts it all; `drumline down` stops it. A repetition changes nothing. Where your settings
    name a Kafka or a ClickHouse elsewhere, only the other one is started, and none of the programs.

    The first time it fetches Kafka's jars (45 MB). Ports and the state directory are settings (DRUMLINE_LOCAL__...;
    `drumline config`).
    """
    from drumline.cli.console import exit_on_error
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack import stack

    chosen = settings()
    if bootstrap:
        chosen = chosen.model_copy(update={"kafka": chosen.kafka.model_copy(update={"bootstrap": bootstrap})})
    with exit_on_error("up", StackError, interrupt_message="interrupted"):
        addresses = stack.up(chosen, wait=wait, foreground=foreground, programs=not servers)
    for sentence in addresses["full"]:
        echo(f"drumline up: {sentence}", err=True)
    programs = addresses.get("programs", {})
    if as_json:
        echo(json.dumps(addresses))
        raise typer.Exit(OK if all(programs.values()) else FAILED)
    echo("already up" if addresses["already_running"] else "up" if wait else "starting")
    echo(f"  Kafka               {addresses['kafka']}")
    echo(f"  ClickHouse, HTTP    {addresses['clickhouse_http']}")
    echo(f"  ClickHouse, native  {addresses['clickhouse_native']}")
    echo(f"  state               {addresses['state']}")
    if programs.get("serve"):
        echo(f"  web page            {addresses['page']}")
    for name in (name for name, is_ready in programs.items() if not is_ready):
        echo(f"drumline up: {name} is not ready; see {chosen.local.state}/logs/{name}.log, programs.log", err=True)
    if not all(programs.values()):
        raise typer.Exit(FAILED)
    if programs:
        echo("next: drumline run --job NAME -- COMMAND")
    if bootstrap:
        echo(f"for the other commands: export DRUMLINE_KAFKA__BOOTSTRAP={bootstrap}")
