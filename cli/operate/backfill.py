"""`drumline backfill`: copy to a replica what Kafka has no more."""

from __future__ import annotations

import json
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.clickhouse_settings import PRIMARY
from drumline.infra.config.replica_settings import NoSuchReplica, of_each, of_replica
from drumline.infra.config.settings import settings
from drumline.infra.config.validation import server_address
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def backfill(
    source: Annotated[
        str, typer.Option("--from", metavar="NAME|URL", help="Replica that has it, or the URL of another server.")
    ],
    replica: Annotated[str, typer.Option(metavar="NAME", help="Replica to copy to.")] = PRIMARY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the ranges without copying them.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Copy rows and ledger to a replica that was emptied or is new, exactly once, for offsets that Kafka has no more.

    First start its sink, which stores what Kafka still has: `drumline sink --replica NAME`, with --accept-loss after
    its disk was replaced. This copies the rest, beside the sink, through this machine; interrupted, run it again.
    `drumline audit --compare` then proves that both are equal.

    --from takes the writer's user and password of the settings. It gets no rows that retention would remove within two
    hours. Needs the tables: `drumline migrate`.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.sinks.audit.kafka_side import KafkaFacts, KafkaUnreachable
    from drumline.sinks.backfill import Backfill, run
    from drumline.sinks.tables.tables import TABLES

    with exit_on_error("backfill", NoSuchReplica, code=BAD_INPUT):
        target, other = of_replica(settings(), replica), _source(settings(), source)
    if server_address(target.clickhouse_url) == server_address(other.clickhouse_url):
        exit_with("backfill", BAD_INPUT, f"{other.clickhouse_url} is the replica to copy to; name another with --from")
    with (
        exit_on_error("backfill", ClickHouseFailed, KafkaUnreachable),
        closing(KafkaFacts(target)) as kafka,
        closing(connect(other, timeout_s=600)) as reading,
        closing(connect(target, timeout_s=600)) as writing,
    ):
        facts = kafka.partitions(stored.topic.value for stored in TABLES)
        copying = Backfill(
            reading, writing, target.clickhouse.database, facts, target.clickhouse.retention, time.time()
        )
        if dry_run:
            count = sum(1 for _ in copying.missing())
            echo(json.dumps({"ranges": count}) if as_json else f"{count} ranges to copy from {other.clickhouse_url}")
            return
        done = run(copying)
    if as_json:
        echo(json.dumps(asdict(done)))
    else:
        echo(
            f"copied from {other.clickhouse_url}: {done.records:,} records with {done.rows:,} rows in {done.ranges:,} "
            f"ranges, {done.rollup_days:,} days of rollups"
        )


def _source(config: Settings, name: str) -> Settings:
    """Return the settings of the server to copy from. Raises NoSuchReplica."""
    if "://" not in name:
        return of_replica(config, name)
    for known in of_each(config).values():
        if server_address(known.clickhouse_url) == server_address(name):
            return known
    server = type(config.clickhouse).model_validate({**dict(config.clickhouse), "url": name, "replicas": {}})
    return config.model_copy(update={"clickhouse": server})
