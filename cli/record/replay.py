"""`drumline replay`: publish a recorded GPU job as if it ran now."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED
from drumline.infra.runtime.terminal import echo, terminal_console
from drumline.infra.telemetry.logging import configure
from drumline.schemas.bounds.limits import PAST_NS
from drumline.schemas.topics import TABLE_NAMES

if TYPE_CHECKING:
    from drumline.producers.replay.recording import RecordedJob
    from drumline.producers.replay.replay import ReplaySummary

app = typer.Typer(add_completion=False)


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a recorded job: Parquet tables and manifest.json")],
    speed: Annotated[
        str, typer.Option(metavar="X|max", help="1 = as recorded, 10 = ten times as fast, max = no waiting")
    ] = "1",
    job: Annotated[str | None, typer.Option(help="job name; default: the folder's name")] = None,
    ranks: Annotated[int | None, typer.Option(min=1, help="scale to one job of N ranks, for scale tests")] = None,
    loop: Annotated[int, typer.Option(min=1, help="repeat N times; time and step numbers continue")] = 1,
    keep_time: Annotated[bool, typer.Option("--keep-time", help="keep the recorded time instead of now")] = False,
    spool: Annotated[
        Path | None, typer.Option(metavar="ROOT", help="write into this spool, for `drumline agent`, instead of Kafka")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Publish the recorded job in DIR to Kafka, through the code that a live producer uses after decoding.

    Every replay is a new run. Its time starts now, or ends now with --speed max. Ctrl-C stops between two batches,
    waits for batches in flight, and prints what the broker acknowledged.

    With --keep-time it first reports how many rows are older than their tables keep rows. They are kept as long as new
    ones, from now on: DRUMLINE_CLICKHOUSE__RETENTION, which `drumline migrate` applies.

    With --ranks, the first copy is the recording with its faults; the others repeat healthy ranks
    (docs/guide/replay.md).

    Exit code: 0 all published, 1 the broker is unreachable or rejected a batch, 2 bad input, 130 interrupted.
    """
    factor = _parse_speed(speed)
    configure(settings(), "replay")
    summary = _publish(folder, factor, job, ranks, loop, keep_time, spool)
    if as_json:
        echo(json.dumps(summary.as_json()))
    else:
        _print(summary)
    if summary.problem:
        exit_with("replay", FAILED, f"{summary.problem}; {summary.dropped} rows were not acknowledged")
    if summary.interrupted:
        exit_with("replay", INTERRUPTED, f"interrupted, {summary.unsent:,} rows were not sent")


def _publish(
    folder: Path,
    speed: float | None,
    job: str | None,
    ranks: int | None,
    loop: int,
    keep_time: bool,
    spool: Path | None,
) -> ReplaySummary:
    """Publish the recorded job. Raises typer.Exit with BAD_INPUT or FAILED if it cannot start."""
    from drumline.infra.kafka.connect import BrokerUnreachable, require_listener
    from drumline.producers.replay.trace import load_manifest

    try:
        manifest = load_manifest(folder, phases=True)  # only to pick healthy ranks for --ranks
    except ValueError as error:  # BadTrace
        exit_with("replay", BAD_INPUT, str(error))
    from drumline.infra.kafka.acls import MissingTopics, require_acls
    from drumline.infra.kafka.registry import codec
    from drumline.producers.replay.publisher import Publisher
    from drumline.producers.replay.recording import RecordedJob
    from drumline.producers.replay.replay import ReplayOptions, Target
    from drumline.producers.replay.replay import replay as publish
    from drumline.producers.replay.spool_target import SpoolTarget
    from drumline.schemas.errors import BadSchema, RegistryUnavailable

    try:
        recording = RecordedJob(folder, job=job, ranks=ranks, loop=loop, manifest=manifest)
    except ValueError as error:  # BadRanks, and again BadTrace
        exit_with("replay", BAD_INPUT, str(error))
    publisher: Target
    try:
        if spool is not None:
            publisher = SpoolTarget(spool, settings().spool.max_mb << 20)
        else:
            require_listener(settings())
            require_acls(settings(), "drumline-replay", dict.fromkeys(recording.topics, ("WRITE",)))
            publisher = Publisher(settings(), codec(settings(), recording.topics), "drumline-replay")
    except (BrokerUnreachable, MissingTopics, RegistryUnavailable, BadSchema) as error:
        exit_with("replay", FAILED, str(error))
    if keep_time:
        _report_old_rows(recording)
    # Only now: until here nothing was published, and a signal just ends the process.
    with _stopping() as stop, _progress(sum(recording.rows.values()), folder.name) as advance:
        return publish(recording, publisher, ReplayOptions(speed, keep_time, stop=stop, progress=advance))


def _report_old_rows(recording: RecordedJob) -> None:
    """Report on stderr how many rows are older than their tables keep rows, and what becomes of them."""
    retention, now_ns = settings().clickhouse.retention, time.time_ns()
    dead_letters = recording.rows_before(dict.fromkeys(recording.topics, now_ns - PAST_NS))
    if dead_letters:
        echo(f"{sum(dead_letters.values()):,} rows are older than 5 years: their batches become dead letters", err=True)
    before = recording.rows_before({topic: retention.kept_since_ns(topic, now_ns) for topic in recording.topics})
    old = {
        TABLE_NAMES[topic]: rows - dead_letters.get(topic, 0)
        for topic, rows in before.items()
        if rows > dead_letters.get(topic, 0)
    }
    if old:
        counts = ", ".join(f"{name} {rows:,} ({retention.of(name)} days)" for name, rows in old.items())
        longer = f"DRUMLINE_CLICKHOUSE__RETENTION='{{\"{next(iter(old))}\": DAYS}}' (0 = for ever)"
        echo(
            f"{sum(old.values()):,} rows are older than their tables keep rows: {counts}. They are kept for as many "
            f"days from now on. To keep them longer, set {longer}, and run `drumline migrate` first.",
            err=True,
        )


def _parse_speed(speed: str) -> float | None:
    """Return the speed-up factor, None for max. Raises typer.BadParameter."""
    if speed == "max":
        return None
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = -1.0
    if not 0 < factor < float("inf"):
        raise typer.BadParameter(f"{speed!r}: a number above 0, or max", param_hint="--speed")
    return factor


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets. The second one has its default effect."""
    stop = threading.Event()
    before: dict[signal.Signals, Any] = {}

    def handler(number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handler)
    try:
        yield stop
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _progress(total: int, name: str) -> Iterator[Any]:
    """Show progress on stderr when it is a terminal. Yields a function that takes the rows of each batch."""
    if not sys.stderr.isatty():
        yield lambda _rows: None
        return
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TextColumn("rows"), TimeRemainingColumn())
    with Progress(*columns, console=terminal_console(stderr=True), transient=True) as display:
        task = display.add_task(name, total=total)
        yield lambda rows: display.advance(task, rows)


def _print(summary: ReplaySummary) -> None:
    table = Table("topic", "rows", "batches", title=f"job {summary.job}, run {summary.run}", title_justify="left")
    for topic, rows in summary.rows.items():
        table.add_row(topic, f"{rows:,}", f"{summary.batches[topic]:,}")
    console = terminal_console()
    console.print(table)
    console.print(f"{sum(summary.rows.values()):,} rows of {summary.ranks} ranks in {summary.duration_s:.1f} s")
    notes = {
        "steps skipped (a collective could not be attributed)": summary.skipped_steps,
        "collectives left out": summary.unattributed_collectives,
        "ranges that never ended": summary.unfinished_ranges,
        "device samples of GPUs without a rank": summary.unknown_samples,
        "rows not acknowledged": summary.dropped,
    }
    for text, count in notes.items():
        if count:
            console.print(f"{count:,} {text}")
