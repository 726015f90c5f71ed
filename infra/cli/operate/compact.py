"""`drumline compact`: keep less of the ledger than a row for each Kafka record."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from drumline.infra.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.terminal import echo

app = typer.Typer(add_completion=False)
DAY_MS = 86_400_000


@app.command()
def compact(
    days: Annotated[
        float, typer.Option(min=0, help="Leave the records that Kafka received in so many days; days.")
    ] = 14.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Turn ledger rows of records that Kafka has removed into runs of consecutive sequences: `ledger_runs`.

    Run it once a day. An hour of a process takes a row in place of thousands. Sequence, offset and number of rows of
    each record stay, so duplicates and damage are found as before. The hash of its content goes: a batch that comes
    again after so many days counts as a duplicate, whatever it holds.

    Sinks may run meanwhile; `drumline audit` should not. Results and rejected records stay as they are. An interrupted
    compaction is completed by the next one.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect
    from drumline.infra.clickhouse.migration_lock import MigrationConflict
    from drumline.schemas.topics import Topic
    from drumline.sinks.audit.kafka_side import KafkaFacts, KafkaUnreachable
    from drumline.sinks.ledger_runs import LedgerCompaction, NotTheSame, can_compact

    config, before_ms = settings(), int(time.time() * 1000 - days * DAY_MS)
    done = []
    with exit_on_error("compact", ClickHouseFailed, KafkaUnreachable, MigrationConflict, NotTheSame, hint=False):
        client = connect(config, timeout_s=3_600)
        kafka = KafkaFacts(config)
        try:
            facts = kafka.partitions(topic.value for topic in Topic if can_compact(topic))
            for topic in LedgerCompaction(client, config.clickhouse.database, before_ms).run(facts):
                done.append({"topic": topic.topic, "records": topic.records, "runs": topic.runs})
                if not as_json:
                    echo(f"{topic.topic}: {topic.records:,} records in {topic.runs:,} runs")
        finally:
            kafka.close()
            client.close()
    if as_json:
        echo(json.dumps({"topics": done}))
    elif not done:
        echo(f"nothing to compact: no record that Kafka has removed is older than {days:g} days")
