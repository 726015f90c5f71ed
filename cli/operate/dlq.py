"""`drumline dlq`: count, show and replay dead letters."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

if TYPE_CHECKING:
    from drumline.views.deadletters.listing import DeadLetter

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Count, show and replay dead letters: rejected records, kept unchanged with origin and reason.",
)
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
TheTopic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic the records came from, or its .dlq topic.")]


@app.command("list")
def list_dead_letters(as_json: AsJson = False) -> None:
    """Count dead letters per topic, reason and reader, from all dead-letter topics.

    A record that the sink and the stream worker both reject has two dead letters, but is one record. --json prints one
    object: "groups", and "records", the distinct records per topic.
    """
    from drumline.infra.kafka.tail import without_empty
    from drumline.schemas.topics import TOPICS, dlq
    from drumline.views.deadletters.listing import grouped

    names = {dlq(spec.topic): spec.topic.value for spec in TOPICS if spec.dead_letters}
    with _exit_on_error():
        groups, records = grouped(e for name in without_empty(settings(), names) for e in _read(names[name]))
    if as_json:
        echo(json.dumps({"groups": [group.as_json() for group in groups], "records": records}))
        return
    if not groups:
        echo("no dead letters")
        return
    columns = ("topic", "reason", "by", "letters", "records", "bytes", "first", "last")
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in ("letters", "records", "bytes") else "left")
    for group in groups:
        values = [group.as_json()[name] for name in columns]
        table.add_row(*(f"{v:,}" if isinstance(v, int) else escape(escape_controls(v)) for v in values))
    terminal_console().print(table)
    echo("; ".join(f"{topic}: {count:,} records in all" for topic, count in records.items()))


@app.command()
def show(
    topic: TheTopic,
    reason: Annotated[str, typer.Option(help="Only this reason (`drumline dlq list`).")] = "",
    most: Annotated[int, typer.Option("--max", min=1, help="At most so many, oldest first.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per letter.")] = False,
) -> None:
    """Print dead letters: origin, key, reason, schema id, size, headers. Never their bytes."""
    name, shown = _topic(topic), 0
    with _exit_on_error():
        for entry in _read(name):
            if reason not in ("", entry.reason):
                continue
            fields = entry.as_json()
            if as_json:
                echo(json.dumps(fields))
            else:
                origin = fields.pop("origin")
                place = f"{origin['topic']}[{origin['partition']}]@{origin['offset']}"
                place += f", part {origin['part']}" if origin["part"] else ""
                rest = " ".join(f"{n}={v}" for n, v in fields.items() if v not in ("", None, {}) and n != "text")
                echo(
                    escape_controls(f"{place} {rest}") + (f"\n    {escape_controls(entry.text)}" if entry.text else "")
                )
            shown += 1
            if shown == most:
                break
    if not shown and not as_json:
        echo(f"no dead letters of {name}" + (f" with reason {reason}" if reason else ""))


@app.command()
def replay(
    topic: TheTopic,
    reason: Annotated[str, typer.Option(help="Only this reason (`drumline dlq list`).")] = "",
    most: Annotated[int | None, typer.Option("--max", min=1, help="At most so many, oldest first.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the number, send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Replay dead letters to their topic of origin, with the original key and bytes and the header drumline.replay.of.

    Use it after an upgrade, or after a schema was registered. Each record is replayed once, also over several
    calls, for as long as Kafka keeps a group's offsets (docs/reference/dead-letter-headers.md). A record that is
    rejected again becomes a new dead letter. Run one replay of a topic at a time. In topics where the newest record
    wins (gpu.process.v1, results) a replayed old record replaces a newer one.

    Exit codes: 0 done, or nothing to do. 1 Kafka does not answer, or rejects. 2 not confirmed.
    """
    from drumline.views.deadletters.listing import due
    from drumline.views.deadletters.replay import DeadLetterReplay, ReplayProgress

    name = _topic(topic)
    with _exit_on_error():
        progress = ReplayProgress(settings())
        dead_letters = [dataclasses.replace(entry, value=entry.value and b"") for entry in _read(name)]
        done = progress.read(
            name, (entry.reason for entry in dead_letters), (entry.partition for entry in dead_letters)
        )
        places = [(entry.partition, entry.offset) for entry in due(dead_letters, done, reason)][:most]
        if places and not (dry_run or yes):
            if not sys.stdin.isatty():
                exit_with("dlq", BAD_INPUT, f"{len(places)} records would be replayed to {name}; confirm with --yes")
            try:
                typer.confirm(f"Replay {len(places)} records to {name}?", err=True, abort=True)
            except typer.Abort:  # no, Ctrl-C or Ctrl-D
                raise typer.Exit(BAD_INPUT) from None
        sent = 0
        if places and not dry_run:
            wanted, replay_of = set(places), DeadLetterReplay(settings(), name, lambda now: progress.write(name, now))
            for entry in _read(name):
                if (entry.partition, entry.offset) in wanted:
                    replay_of.add(entry)
            replay_of.end()
            sent = replay_of.sent
    if as_json:
        echo(json.dumps({"topic": name, "letters": len(dead_letters), "due": len(places), "put_back": sent}))
    else:
        echo(f"{name}: {len(places):,} records to replay" if dry_run else f"{name}: {sent:,} records replayed")


def _read(topic: str) -> Iterator[DeadLetter]:
    from drumline.infra.kafka.tail import read
    from drumline.schemas.topics import dlq
    from drumline.views.deadletters.listing import parse_dead_letter

    for message in read(settings(), dlq(topic), "beginning", follow=False):
        yield parse_dead_letter(message, topic)


def _topic(name: str) -> str:
    """The origin topic, given it or its dead-letter topic. Exits with 2 on anything else."""
    from drumline.schemas.topics import TOPICS

    topic = name.removesuffix(".dlq")
    if topic not in [spec.topic.value for spec in TOPICS if spec.dead_letters]:
        exit_with("dlq", BAD_INPUT, f"{name} has no dead letters; `drumline topics list` names the topics that do")
    return topic


def _exit_on_error() -> AbstractContextManager[None]:
    from confluent_kafka import KafkaException

    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.views.deadletters.replay import ReplayFailed

    return exit_on_error("dlq", BrokerUnreachable, NoSuchTopic, ReplayFailed, KafkaException)
