"""`drumline sink`: topics to ClickHouse, exactly once."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from drumline.infra.config.settings import settings
from drumline.infra.runtime.signals import ShutdownSignal
from drumline.infra.telemetry.logging import configure

app = typer.Typer(add_completion=False)


@app.command()
def sink(
    topic: Annotated[list[str] | None, typer.Option("--topic", "-t", help="Only this topic; may be repeated.")] = None,
    instance: Annotated[
        str, typer.Option(help="Static group membership: a name of its own per sink process; restarts do not wait.")
    ] = "",
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on behind records that Kafka removed before they were stored.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as one JSON object at the end.")] = False,
) -> None:
    """Write topics to ClickHouse, exactly once; all topics by default. Runs until SIGTERM (exit 0)
    or Ctrl-C (exit 130); a second one does not wait for what is in hand.

    Killed at any moment, it goes on where it was: no row is lost or doubled. ClickHouse may go away and come back.

    Metrics and health: http://127.0.0.1:19465/metrics, /healthz, /readyz (DRUMLINE_SINK__METRICS_PORT, 0 = none).

    It stops by itself, changing nothing, with exit code

    \b
    1  no Kafka broker answers at the start, or Kafka's client is beyond repair: start it again
    2  a wrong setting, an unknown topic, or topics that are missing (`drumline topics apply`)
    3  too many dead letters (DRUMLINE_SINK__DEAD_LETTER_RUN, DRUMLINE_SINK__DEAD_LETTER_RATIO)
    4  records are gone from Kafka, or an announced range cannot be rebuilt
    5  ClickHouse refuses: wrong password, missing grant or table (`drumline migrate`), ...
    6  another sink runs under the same --instance
    7  Kafka or the schema registry refuses: certificate, user, password, or a missing ACL, which is named
       (docs/guide/security.md)
    """
    from confluent_kafka import KafkaException, Producer

    from drumline.infra.clickhouse import client as clickhouse
    from drumline.infra.kafka.acls import MissingTopics, require_acls
    from drumline.infra.kafka.config import dead_letter_config
    from drumline.infra.kafka.connect import BrokerUnreachable, KafkaAccessDenied, silence_librdkafka
    from drumline.infra.kafka.registry import codec
    from drumline.infra.telemetry.health import CachedProbe, Health, serve_health
    from drumline.schemas.errors import RegistryRejected
    from drumline.schemas.topics import TOPICS, Topic, dlq
    from drumline.sinks.errors import Fenced, LostRecords, TransientKafkaError
    from drumline.sinks.intake import TooManyDeadLetters
    from drumline.sinks.kafka.consumer import SinkConsumer
    from drumline.sinks.kafka.dead_letters import DeadLetterProducer
    from drumline.sinks.ranges.partition import ReplayImpossible
    from drumline.sinks.sink import Sink
    from drumline.sinks.tables.tables import TABLES

    config = settings()
    if instance:
        config.sink.instance = instance
    configure(config, "sink")
    known: list[str] = [stored.topic.value for stored in TABLES]
    unknown = [name for name in topic or [] if name not in known]
    if unknown:
        _stop(2, f"{unknown[0]} has no table; topics are {', '.join(known)}")
    topics = [Topic(name) for name in topic or known]
    health = Health()
    health.probe("clickhouse", CachedProbe(lambda: clickhouse.readiness_reason(config), "ClickHouse does not answer"))
    serve_health("sink", config.sink.metrics_port, health)
    rights = {name.value: ("READ",) for name in topics}
    rights |= {dlq(spec.topic): ("WRITE",) for spec in TOPICS if spec.topic in topics and spec.dead_letters}
    try:
        require_acls(config, "drumline-sink", rights, {config.sink.group: ("READ",)})  # till here a signal just ends it
        stopping = ShutdownSignal()
        kafka = SinkConsumer(config, topics, accept_loss=accept_loss)
        letters = DeadLetterProducer(
            lambda: Producer(silence_librdkafka(dead_letter_config(config, "drumline-sink-dead-letters")))
        )
        program = Sink(
            config, kafka, letters, lambda: clickhouse.connect(config), codec(config), stopping=stopping, health=health,
        )  # fmt: skip
        program.run()
    except TooManyDeadLetters as error:
        _stop(
            3,
            f"stopped by dead letters: {error}. Nothing of this is committed; "
            "mend the producer or upgrade, then restart",
        )
    except (LostRecords, ReplayImpossible) as error:
        _stop(4, str(error))
    except clickhouse.PermanentError as error:
        _stop(5, f"ClickHouse refuses: {clickhouse.with_hint(error)}")
    except Fenced as error:
        _stop(6, f"another sink runs as this instance (if not, start this one again): {error}")
    except MissingTopics as error:
        _stop(2, str(error))
    except (KafkaAccessDenied, RegistryRejected) as error:
        _stop(7, str(error))
    except BrokerUnreachable as error:
        _stop(1, str(error))
    except (TransientKafkaError, KafkaException) as error:
        _stop(1, f"Kafka at {config.bootstrap}: {error}")
    if as_json:
        print(json.dumps(asdict(program.counts)))
    raise typer.Exit(stopping.code)


def _stop(code: int, reason: str) -> None:
    print(f"drumline sink: {reason}", file=sys.stderr)
    raise typer.Exit(code)
