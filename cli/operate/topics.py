"""`drumline topics`: create, check and read the Kafka topics."""

from __future__ import annotations

import json
import os
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

if TYPE_CHECKING:
    from drumline.infra.kafka.topic_admin import Step
    from drumline.infra.kafka.verification import ProducerAccount

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Create, check and read the Kafka topics.")


class Start(StrEnum):
    """Start of `topics tail`: a partition's beginning or its end."""

    BEGINNING = "beginning"
    END = "end"


@app.command()
def apply(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the changes without making them.")] = False,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Of each topic without its own; default DRUMLINE_KAFKA__PARTITIONS.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; fail unless all is as declared.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per topic.")] = False,
) -> None:
    """Create all topics and their dead-letter topics, and correct drifted configuration.

    A repetition changes nothing. Exit 1 if a topic cannot be corrected, such as one with another number of partitions.
    Another number of replicas is named, not changed. With --check, exit 1 if anything differs: a missing topic, the
    number of replicas, min.insync.replicas, any other configuration.
    """
    from confluent_kafka import KafkaException

    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.topic_admin import TopicsAdmin, checked, declared_topics, plan

    with exit_on_error("topics", BrokerUnreachable, KafkaException):
        admin = TopicsAdmin(settings())
        topics = declared_topics(settings(), partitions)
        steps = plan(topics, admin.existing(topic.name for topic in topics))
        if check:
            steps = checked(steps)
        elif not dry_run:
            steps = admin.apply(topics, steps)
    states = {"create": "created", "alter": "altered"} if not dry_run else {"create": "to create", "alter": "to alter"}
    table = Table("topic", "state", "what")
    for step in steps:
        state = states.get(step.action, step.action)
        drift = {name: {"was": was, "wanted": value} for name, (was, value) in step.drift.items()}
        if as_json:
            echo(json.dumps({"topic": step.topic, "state": state, "drift": drift, **_problem(step)}))
        changes = [f"{name}: {was} -> {value}" for name, (was, value) in step.drift.items()]
        table.add_row(step.topic, state, "; ".join([step.problem] * bool(step.problem) + changes))
    if not as_json:
        terminal_console().print(table)
    for remedy in () if as_json else dict.fromkeys(step.remedy for step in steps if step.remedy):
        echo(f"remedy: {remedy}")
    if any(step.action == "error" for step in steps):
        raise typer.Exit(FAILED)


def _problem(step: Step) -> dict[str, str]:
    """Return problem and remedy of a step, for JSON."""
    return {"problem": step.problem, **({"remedy": step.remedy} if step.remedy else {})}


@app.command("list")
def list_topics(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per topic.")] = False,
) -> None:
    """Print the declared topics: key, retention, record and dead-letter topic. Needs no broker."""
    from drumline.infra.kafka.topic_admin import declared_topics
    from drumline.schemas.model import has_schema, model
    from drumline.schemas.topics import DAY_MS, TOPICS, dlq

    partitions = {topic.name: topic.partitions for topic in declared_topics(settings())}
    table = Table(box=None)
    for heading in ("topic", "key", "retention", "record", "dead letters"):
        table.add_column(heading, no_wrap=heading != "key")
    for spec in TOPICS:
        record = model(spec.topic).name if has_schema(spec.topic) else None
        dead_letters = dlq(spec.topic) if spec.dead_letters else None
        if as_json:
            line = {"topic": spec.topic, "key": spec.key, "config": spec.config, "record": record, "dlq": dead_letters}
            echo(json.dumps({**line, "partitions": partitions[str(spec.topic)]}))
        days = "newest per key" if "compact" in spec.cleanup else _days(spec.retention_ms / DAY_MS)
        table.add_row(spec.topic, spec.key, days, record or "internal", dead_letters or "")
    if not as_json:
        terminal_console().print(table)


def _days(days: float) -> str:
    return f"{days:g} days" if days >= 1 else f"{days * 24:g} h"


@app.command()
def tail(
    topic: Annotated[str, typer.Argument(help="One of `drumline topics list`, or its dead-letter topic.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
    start: Annotated[Start, typer.Option("--from", help="Where to start.")] = Start.END,
    follow: Annotated[bool, typer.Option(help="Wait for more at the end; else stop there.")] = True,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many rows.")] = None,
    job: Annotated[str | None, typer.Option(help="Only this job.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    batches: Annotated[bool, typer.Option("--batches", help="One line per batch, without its rows.")] = False,
) -> None:
    """Print the rows of a topic: identity, columns, dictionary columns as text. Ctrl-C ends it.

    Unreadable records are shown with place and reason, dead letters with their headers; never their bytes.
    """
    from confluent_kafka import KafkaException

    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.registry import codec
    from drumline.infra.kafka.tail import NoSuchTopic, entries, jsonable, read
    from drumline.schemas.errors import RegistryUnavailable
    from drumline.schemas.topics import TOPICS, dlq

    known = [name for spec in TOPICS for name in (spec.topic, *([dlq(spec.topic)] if spec.dead_letters else []))]
    if topic not in known:
        exit_with("topics", BAD_INPUT, f"{topic} is not one of drumline's topics; `drumline topics list` names them")
    where = {name: value for name, value in (("job", job), ("run", run)) if value is not None}
    printed = 0
    try:
        with exit_on_error("topics", BrokerUnreachable, NoSuchTopic, RegistryUnavailable, KafkaException):
            decoder = codec(settings())
            for message in read(settings(), topic, start.value, follow):
                for entry in entries(decoder, message, where, batches=batches):
                    echo(json.dumps(jsonable(entry)) if as_json else _line(entry), flush=True)
                    printed += 1
                    if printed == most:
                        return
    except BrokenPipeError:  # `| head` has ended; the interpreter must not flush into the closed pipe at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(entry: dict[str, Any]) -> str:
    """`partition:offset[:row] name=value ...`, empty text left out."""
    place = ":".join(str(entry[name]) for name in ("_partition", "_offset", "_row") if name in entry)
    rest = (
        f"{name}={value}" for name, value in entry.items() if not name.startswith("_") and value not in ("", {}, [])
    )
    return escape_controls(f"{place} {' '.join(rest)}")


@app.command()
def verify(
    job: Annotated[str, typer.Option(help="Only producers of this job.")] = "",
    last: Annotated[int, typer.Option(min=0, help="Newest records of each partition; 0 = all.")] = 10_000,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per topic and producer.")] = False,
) -> None:
    """Check the newest records against the record format, and name the producers that break it.

    Checked are partition (murmur2 of the key), key, and whether the record can be read. With a wrong partition, stream
    workers do not join the ranks of a job. A topic that got more partitions has older records on a wrong one too.
    Sequences are checked by `drumline audit`.

    Exit codes: 0 all keep the format. 1 some do not, or Kafka does not answer.
    """
    from confluent_kafka import KafkaException

    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.registry import codec
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.infra.kafka.verification import VERIFIED, Verification, newest_records, partition_numbers
    from drumline.schemas.errors import RegistryUnavailable

    with exit_on_error("topics", BrokerUnreachable, NoSuchTopic, RegistryUnavailable, KafkaException):
        numbers = partition_numbers(settings(), VERIFIED)
        verification = Verification(codec(settings()), numbers)
        for message in newest_records(settings(), numbers, last):
            verification.add(message)
    accounts = verification.accounts(job)
    broken = [account for account in accounts if not account.keeps_format]
    for account in accounts if as_json else ():
        echo(json.dumps(account.as_json()))
    if not as_json:
        if broken:
            terminal_console().print(_producers(broken))
        batches, producers = sum(account.batches for account in accounts), {a.process_id for a in accounts}
        wrong = {account.process_id for account in broken}
        echo(f"{batches:,} batches of {len(producers):,} producers; {len(wrong):,} producers break the record format")
    if broken:
        raise typer.Exit(FAILED)


def _producers(accounts: list[ProducerAccount]) -> Table:
    """Return a table of producers that break the record format; names in it are of jobs: no markup."""
    from rich.text import Text

    table = Table("producer", "topic", "broken", "example")
    for account in accounts:
        rank = "" if account.rank < 0 else f" rank {account.rank}"
        producer = f"{account.job}{rank} on {account.host}, process {account.process_id}"
        counts = {name: getattr(account, name) for name in ("wrong_partition", "wrong_key", "unreadable")}
        of = [f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items() if count]
        broken = f"of {account.batches:,} batches {', '.join(of)}"
        table.add_row(*(Text(escape_controls(text)) for text in (producer, account.topic, broken, account.example)))
    return table
