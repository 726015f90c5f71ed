"""`drumline sink`: topics to ClickHouse, exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.clickhouse_settings import PRIMARY
from drumline.infra.config.replica_settings import NoSuchReplica, of_replica
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import (
    ACCESS_DENIED,
    BAD_INPUT,
    CLICKHOUSE_REJECTED,
    FAILED,
    INSTANCE_IN_USE,
    RECORDS_LOST,
)
from drumline.infra.runtime.malloc import share_heap
from drumline.infra.runtime.signals import ShutdownSignal
from drumline.infra.runtime.terminal import echo
from drumline.infra.telemetry.logging import configure

if TYPE_CHECKING:
    from drumline.infra.config.settings import Settings
    from drumline.infra.telemetry.health import Health
    from drumline.schemas.topics import Topic
    from drumline.sinks.sink import Sink

app = typer.Typer(add_completion=False)


@app.command()
def sink(
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")] = None,
    instance: Annotated[
        str, typer.Option(help="Static group membership: a name per sink process. A restart needs no rebalance.")
    ] = "",
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Continue after records that Kafka removed unstored or lost, or that ClickHouse lacks.",
        ),
    ] = False,
    replica: Annotated[
        str, typer.Option(metavar="NAME", help="Write to this replica of DRUMLINE_CLICKHOUSE__REPLICAS.")
    ] = PRIMARY,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object at the end.")] = False,
) -> None:
    """Write topics to ClickHouse, exactly once; all topics by default.

    A killed sink resumes where it was: no row is lost or doubled. ClickHouse may be away for any time.

    Metrics and health: http://127.0.0.1:19465/metrics, /healthz, /readyz (DRUMLINE_METRICS_PORT, 0 = none).

    Runs until SIGTERM (exit 0) or Ctrl-C (exit 130). The first signal completes the work in progress, a second one does
    not. It ends by itself, without a change, with exit code

    \b
    1  no Kafka broker answers at the start, or Kafka's client cannot recover: start it again
    2  a wrong setting, an unknown topic, or missing topics (`drumline topics apply`)
    4  Kafka no longer has records that are not stored, or lost stored ones and gives their offsets to new ones, or a
       range with a committed intent cannot be rebuilt, or the ledger lacks what was committed as stored
    5  ClickHouse rejects: wrong password, missing grant or table (`drumline migrate`), ...
    6  another sink runs under the same --instance
    7  Kafka or the schema registry rejects: certificate, user, password, or a missing ACL, which is named
       (docs/guide/security.md)
    """
    from drumline.infra.telemetry.health import Health
    from drumline.schemas.topics import Topic
    from drumline.sinks.tables.tables import TABLES

    config = settings()
    with exit_on_error("sink", NoSuchReplica, code=BAD_INPUT):
        config = of_replica(config, replica)
    if instance:
        config.instance = instance
    configure(config, "sink")
    share_heap()  # before Kafka's client starts threads: they allocate buffers that this thread frees
    known: list[str] = [stored.topic.value for stored in TABLES]
    unknown = [name for name in topic or [] if name not in known]
    if unknown:
        exit_with("sink", BAD_INPUT, f"{unknown[0]} has no table; topics are {', '.join(known)}")
    topics = [Topic(name) for name in topic or known]
    health = _serve_health(config, Health())
    with _exit_on_error(config):
        _require_acls(config, topics)  # before the signal handlers: until here a signal just ends the process
        stopping = ShutdownSignal()
        program = _build(config, topics, accept_loss, stopping, health, replica)
        program.run()
    if as_json:
        echo(json.dumps(asdict(program.counts)))
    raise typer.Exit(stopping.code)


def _serve_health(config: Settings, health: Health) -> Health:
    from drumline.infra.clickhouse import client as clickhouse
    from drumline.infra.telemetry.health import CachedProbe, serve_health

    health.probe("clickhouse", CachedProbe(lambda: clickhouse.readiness_reason(config), "ClickHouse does not answer"))
    serve_health("sink", config, health)
    return health


def _require_acls(config: Settings, topics: list[Topic]) -> None:
    from drumline.infra.kafka.acls import require_acls
    from drumline.schemas.topics import TOPICS, dlq

    rights = {name.value: ("READ",) for name in topics}
    rights |= {dlq(spec.topic): ("WRITE",) for spec in TOPICS if spec.topic in topics and spec.dead_letters}
    require_acls(config, "drumline-sink", rights, {config.sink.group: ("READ",)}, is_patient=True)


def _build(
    config: Settings, topics: list[Topic], accept_loss: bool, stopping: ShutdownSignal, health: Health, replica: str
) -> Sink:
    from confluent_kafka import Producer

    from drumline.infra.clickhouse import client as clickhouse
    from drumline.infra.kafka.config import dead_letter_config
    from drumline.infra.kafka.connect import silence_librdkafka
    from drumline.infra.kafka.registry import codec
    from drumline.sinks.kafka.consumer import SinkConsumer
    from drumline.sinks.kafka.dead_letters import DeadLetterProducer, DeadLetterSender, RejectedRows
    from drumline.sinks.sink import Sink

    kafka = SinkConsumer(config, topics, accept_loss=accept_loss)
    producer_config = silence_librdkafka(dead_letter_config(config, "drumline-sink-dead-letters"))
    dead_letters: DeadLetterSender = DeadLetterProducer(lambda: Producer(producer_config))
    if replica != PRIMARY:
        dead_letters = RejectedRows(dead_letters)
    return Sink(
        config, kafka, dead_letters, lambda: clickhouse.connect(config), codec(config), stopping=stopping, health=health
    )


@contextmanager
def _exit_on_error(config: Settings) -> Iterator[None]:
    """End the command with the exit code of the error that stopped the sink."""
    from confluent_kafka import KafkaException

    from drumline.infra.clickhouse import client as clickhouse
    from drumline.infra.kafka.acls import MissingTopics
    from drumline.infra.kafka.connect import BrokerUnreachable, KafkaAccessDenied
    from drumline.schemas.errors import RegistryRejected
    from drumline.sinks.errors import Fenced, LostRecords, TransientKafkaError
    from drumline.sinks.ranges.rebuild import ReplayImpossible

    try:
        yield
    except (LostRecords, ReplayImpossible) as error:
        exit_with("sink", RECORDS_LOST, str(error))
    except clickhouse.PermanentError as error:
        exit_with("sink", CLICKHOUSE_REJECTED, f"ClickHouse rejects it: {clickhouse.with_hint(error)}")
    except Fenced as error:
        text = f"another sink runs as this instance (if not, start this one again): {error}"
        exit_with("sink", INSTANCE_IN_USE, text)
    except MissingTopics as error:
        exit_with("sink", BAD_INPUT, str(error))
    except (KafkaAccessDenied, RegistryRejected) as error:
        exit_with("sink", ACCESS_DENIED, str(error))
    except BrokerUnreachable as error:
        exit_with("sink", FAILED, str(error))
    except (TransientKafkaError, KafkaException) as error:
        exit_with("sink", FAILED, f"Kafka at {config.bootstrap}: {error}")
