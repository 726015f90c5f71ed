"""`drumline backup`: back the database up, and restore it."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Back the database up by ClickHouse's BACKUP, with the policies in force, and restore it.",
)
Target = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the backup below the server's backups.allowed_path; DISK:NAME: on that disk."
    ),
]
#: Time for BACKUP and RESTORE; s.
STATEMENT_S = 86_400
#: Longest time for which Kafka still lists a sink that has stopped, its session with a margin; s.
LEFT_S = 15.0


@app.command("create")
def create(target: Target) -> None:
    """Back up all tables: rows, ledger, limits, acknowledgements, and the policies in force of drumline.control.v1.

    No sink may run: tables and ledger would be of different times. The local engine writes below
    <DRUMLINE_LOCAL__STATE>/clickhouse/backups.

    Exit codes: 0 done. 1 a server does not answer or rejects. 2 a sink runs, or no name of a backup.
    """
    from confluent_kafka import KafkaException

    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.sinks import backup
    from drumline.views.control.control_topic import in_force

    config = settings()
    with (
        exit_on_error("backup", backup.BadTarget, code=BAD_INPUT),
        exit_on_error("backup", ClickHouseFailed, StackError, BrokerUnreachable, KafkaException, NoSuchTopic),
        ensure_engine(config),
    ):
        backup.place(target)
        _require_no_sink(config)
        control = {request.key: json.dumps(asdict(request)) for request in in_force(config, time.time_ns())}
        client = connect(config, timeout_s=STATEMENT_S)
        size = backup.create(client, config.clickhouse.database, target, control)
        stored = backup.counts(client, config.clickhouse.database)
        _require_no_sink(config, f"; what {escape_controls(target)} holds is of different times: do not restore it")
    rows = sum(stored.values())
    echo(
        f"{escape_controls(target)}: {rows:,} rows of {len(stored)} tables, {size / 1e6:,.1f} MB; "
        f"{len(control)} policies"
    )


@app.command("restore")
def restore(target: Target) -> None:
    """Restore a database that is not there, and the policies that have not ended meanwhile.

    Stop sinks, page and Grafana, DROP DATABASE, restore, and run `drumline migrate`. Then start the sink once with
    --accept-loss: it reads from Kafka again what came since the backup, as far as retention has left it there; the
    audit names what it has not.

    Exit codes: 0 done. 1 a server does not answer or rejects. 2 a sink runs, no name of a backup, or the database is
    there.
    """
    from confluent_kafka import KafkaException

    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.sinks import backup

    config = settings()
    with (
        exit_on_error("backup", backup.BadTarget, code=BAD_INPUT),
        exit_on_error("backup", ClickHouseFailed, StackError, BrokerUnreachable, KafkaException, NoSuchTopic),
        ensure_engine(config),
    ):
        _require_no_sink(config)
        client = connect(config, timeout_s=STATEMENT_S)
        control = backup.restore(client, config.clickhouse.database, target)
        stored = backup.counts(client, config.clickhouse.database)
        written = _write_back(config, control)
    echo(f"{sum(stored.values()):,} rows of {len(stored)} tables; {written} policies are in force again")
    echo("next: drumline migrate; then drumline sink --accept-loss, which reads what came since from Kafka")


def _write_back(config: Settings, requests: dict[str, str]) -> int:
    """Write the requests that have not ended and are not there to Kafka; return their number."""
    from drumline.schemas.control import Control
    from drumline.views.control.control_topic import in_force, write

    now_ns = time.time_ns()
    present = {control.key for control in in_force(config, now_ns)}
    kept = [Control(**{**values, "ranks": tuple(values["ranks"])}) for values in map(json.loads, requests.values())]
    wanted = [
        replace(control, start_ns=max(now_ns, control.start_ns), requested_ns=now_ns)
        for control in kept
        if control.until_ns > now_ns and control.key not in present
    ]
    if wanted:
        write(config, [(control.key, control) for control in wanted])
    return len(wanted)


def _require_no_sink(config: Settings, what_follows: str = "") -> None:
    """End where a sink of the group runs; Kafka knows for some seconds one that has stopped.

    Raises typer.Exit, and BrokerUnreachable or KafkaException where Kafka does not answer.
    """
    from drumline.infra.kafka.connect import require_listener
    from drumline.infra.kafka.offsets import Offsets

    require_listener(config)
    until = time.monotonic() + LEFT_S
    with closing(Offsets(config)) as offsets:
        if members := offsets.members(config.sink.group):
            echo(f"drumline backup: waiting until no sink runs, for {LEFT_S:.0f} s at most", err=True)
        while members and time.monotonic() < until:
            time.sleep(0.5)
            members = offsets.members(config.sink.group)
    if members:
        stop = "stop them first; those of `drumline up` by `drumline down`, then `drumline up --servers`"
        text = f"{members} sinks of group {config.sink.group} run: {stop}{what_follows}"
        exit_with("backup", BAD_INPUT, text)
