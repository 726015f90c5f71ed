"""`drumline limits`: limits of alert rules for some jobs."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.replica_settings import of_each
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.nearest import did_you_mean
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

if TYPE_CHECKING:
    from drumline.infra.clickhouse.client import Client
    from drumline.infra.config.settings import Settings

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Give some jobs limits of their own in Grafana's alert rules. They hold from the next evaluation on.",
)
AsJson = Annotated[bool, typer.Option("--json", help="For scripts.")]
Jobs = Annotated[str, typer.Option("--job", metavar="PATTERN", help="The jobs; * stands for any text.")]
Label = Annotated[str, typer.Option(metavar="NAME=VALUE", help="Only jobs with this label of `drumline run --label`.")]
#: Words for a limit that is never reached.
OFF = "off"


@app.command("list")
def list_limits() -> None:
    """List the limits that there are, with what holds for jobs that have none of their own."""
    from drumline.infra.grafana.limits import LIMITS

    table = Table("name", "default", "meaning", box=None, pad_edge=False)
    for limit in LIMITS:
        table.add_row(limit.name, f"{limit.default:.4g}", limit.meaning)
    terminal_console().print(table)


@app.command("show")
def show(as_json: AsJson = False) -> None:
    """Show the limits in force. The closest one counts: job and label, job, label; then the newest."""
    from drumline.infra.grafana.limit_rows import current

    with _connected(settings(), reader=True) as client:
        limits = current(client)
    if as_json:
        echo(json.dumps([{**limit, "value": _text(limit["value"])} for limit in limits]))
        return
    if not limits:
        echo("no job has limits of its own: `drumline limits set NAME=VALUE --job PATTERN`")
        return
    table = Table("name", "value", "job", "label", "changed", "note", box=None, pad_edge=False)
    for limit in limits:
        texts = (limit["name"], _text(limit["value"]), limit["job"], limit["label"], limit["changed"], limit["note"])
        table.add_row(*(escape(escape_controls(text)) for text in texts))
    terminal_console().print(table)


@app.command("set")
def set_limits(
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="VALUE: a number, or off.")],
    job: Jobs = "*",
    label: Label = "",
    note: Annotated[str, typer.Option(help="Why: others read it in `show`.")] = "",
) -> None:
    """Set limits for jobs, by name or label. Needs the writer's account of ClickHouse.

    Example: drumline limits set stalled_s=3600 silent_s=off --job 'llama-*' --note 'evaluates for 40 minutes'
    """
    from drumline.infra.grafana.limit_rows import write

    limits = [_limit(text, job, label, note) for text in values]
    for config in of_each(settings()).values():
        with _connected(config) as client:
            for limit in limits:
                write(client, limit)
    for limit in limits:
        echo(f"{limit['name']} is {_text(limit['value'])} for {_jobs(job, label)}")


@app.command("clear")
def clear(
    chosen: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Default: all of them.")] = None,
    job: Jobs = "*",
    label: Label = "",
) -> None:
    """Clear the limits that were set with this --job and --label."""
    from drumline.infra.grafana.limit_rows import current, write

    for name in chosen or ():
        _known(name)
    _check(job, label)
    limits: dict[str, dict[str, Any]] = {}
    for config in of_each(settings()).values():
        with _connected(config) as client:
            matching = [row for row in current(client) if (row["job"], row["label"]) == (job, label)]
            for row in matching:
                if not chosen or row["name"] in chosen:
                    write(client, {name: row[name] for name in ("name", "job", "label", "value", "note")}, cleared=True)
                    limits[row["name"]] = row
    for name in limits:
        echo(f"{name} of {_jobs(job, label)} is cleared")
    if not limits:
        echo(f"nothing is set for {_jobs(job, label)}; `drumline limits show` lists what is")


@contextmanager
def _connected(config: Settings, *, reader: bool = False) -> Iterator[Client]:
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect

    with exit_on_error("limits", ClickHouseFailed):
        client = connect(config, reader=reader, database=config.clickhouse.database)
        try:
            yield client
        finally:
            client.close()


def _percent(number: str) -> str:
    return "; a share of 10 % is 0.1" if number.endswith("%") else ""


def _limit(text: str, job: str, label: str, note: str) -> dict[str, Any]:
    name, _, number = text.partition("=")
    limit = _known(name)
    _check(job, label)
    off = 0.0 if limit.below else math.inf
    try:
        value = off if number == OFF else float(number)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf or number == OFF):
        exit_with("limits", BAD_INPUT, f"{name}: {number!r} is neither a number above 0 nor {OFF}{_percent(number)}")
    if number != OFF and value < limit.least:
        exit_with("limits", BAD_INPUT, f"{name}: {number} would change nothing; the least is {limit.least:g}")
    if number != OFF and value > limit.most:
        never = "always below it" if limit.below else "never above it"
        text = f"the most is {limit.most:g}; {name}={OFF} turns the alert off"
        exit_with("limits", BAD_INPUT, f"{name}: {number}: what is measured is {never}; {text}")
    return {"name": name, "job": job, "label": label, "value": value, "note": note}


def _known(name: str) -> Any:
    from drumline.infra.grafana.limits import LIMITS

    for limit in LIMITS:
        if limit.name == name:
            return limit
    close = difflib.get_close_matches(name, [limit.name for limit in LIMITS], n=1)
    hint = did_you_mean(close) or "`drumline limits list` names all"
    exit_with("limits", BAD_INPUT, f"no limit is called {name!r}; {hint}")


def _check(job: str, label: str) -> None:
    if not job:
        exit_with("limits", BAD_INPUT, "--job is empty; * stands for all jobs")
    if label and "=" not in label:
        exit_with("limits", BAD_INPUT, f"--label {label}: write NAME=VALUE")


def _text(value: float) -> str:
    return OFF if value in (0.0, math.inf) else f"{value:g}"


def _jobs(job: str, label: str) -> str:
    return f"jobs {job}" + (f" with label {label}" if label else "")
