"""`drumline policy`: what processes record, from one place."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console
from drumline.infra.runtime.times import BadTime, parse_time
from drumline.schemas.topics import Topic

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help=f"Set what processes record, from one place, for a time. Agents follow {Topic.CONTROL} and apply it.",
)
Job = Annotated[str, typer.Option(metavar="PATTERN", help="The jobs; * stands for any text.")]


@app.command("set")
def set_policy(
    policy: Annotated[str, typer.Argument(help="As of `drumline run --policy`: counts, always, off.")],
    job: Job = "*",
    run: Annotated[str, typer.Option(help="A run of them; default: all.")] = "",
    ranks: Annotated[str, typer.Option(help="Ranks: 0,3 or 0-7; default: all.")] = "",
    host: Annotated[str, typer.Option(metavar="PATTERN", help="The hosts; * stands for any text.")] = "*",
    period: Annotated[str, typer.Option("--for", help="How long: 90s, 30m, 2h or 7d, the most.")] = "1h",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask where it reaches several jobs.")] = False,
) -> None:
    """Set the policy of processes for a time; then their own counts again. Needs Write on drumline.control.v1.

    It reaches processes of policy auto, counts, always and off within seconds; those of `light` refuse. A deep window
    of `drumline capture` comes before it, and the file <spool>/policy of a host before both. The same processes named
    again replace it. Where it does not reach just one running job, it names those it reaches and asks. `drumline sql
    collecting --job JOB` shows what they record.

    Exit codes: 0 written. 1 Kafka does not answer or rejects. 2 no such policy, a bad option, or not confirmed.
    """
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.producers.ipc.policy import ROLLUP, BadPolicy, parse
    from drumline.schemas.control import POLICY, BadControl, Control
    from drumline.views.control.control_topic import user_name, write
    from drumline.views.control.ranks import BadRankList, ranks_of

    now = datetime.now(UTC)
    now_ns = time.time_ns()
    with exit_on_error("policy", BadPolicy, BadTime, BadRankList, BadControl, code=BAD_INPUT):
        text, numbers = str(chosen := parse(policy)), ranks_of(ranks)
        if chosen.mode == ROLLUP:
            raise BadPolicy("policy rollup is chosen when a process starts: drumline run --policy rollup")
        length_ns = round((now - _ago(period, now)).total_seconds() * 1e9)
        control = Control(
            key=f"policy-{job}-{run}-{ranks}-{host}", kind=POLICY, policy=text, job=job, run=run, host=host,
            ranks=tuple(numbers), start_ns=now_ns, until_ns=now_ns + length_ns,
            requested_by=user_name(), requested_ns=now_ns,
        ).checked()  # fmt: skip
    if not yes:
        _confirm(control.job, text)
    with exit_on_error("policy", NoSuchTopic, BrokerUnreachable):
        write(settings(), [(control.key, control)])
    echo(f"{escape_controls(control.key)}: {text} until {_time(control.until_ns)}")


def _ago(period: str, now: datetime) -> datetime:
    try:
        return parse_time(period, now)
    except BadTime:
        raise BadTime(f"--for {period!r} is no length of time; write 90s, 30m, 2h or 7d") from None


def _confirm(pattern: str, policy: str) -> None:
    """Ask whether several jobs are meant. Raises typer.Exit where nobody can be asked, or says no."""
    from drumline.schemas.control import exact
    from drumline.views.control.reach import reach, running_jobs

    if pattern == exact(pattern):  # the name of one job
        return
    jobs = running_jobs(settings(), pattern)
    if jobs is not None and len(jobs) == 1:
        return
    reached = f"{policy} would be the policy of {reach(jobs, pattern)}"
    if not sys.stdin.isatty():
        exit_with("policy", BAD_INPUT, f"{reached}; confirm with --yes, or name fewer with --job")
    if not typer.confirm(f"{reached}. Set it?", err=True):
        raise typer.Exit(BAD_INPUT)


@app.command("show")
def show(as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False) -> None:
    """Show the policies, deep windows and pulls in force, the newest first. Needs Read on drumline.control.v1.

    Exit codes: 0 shown. 1 Kafka does not answer or rejects.
    """
    from dataclasses import asdict

    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.views.control.control_topic import in_force

    with exit_on_error("policy", NoSuchTopic, BrokerUnreachable):
        controls = in_force(settings(), time.time_ns())
    if as_json:
        for control in controls:
            echo(json.dumps(asdict(control)))
        return
    if not controls:
        echo("nothing is asked: processes follow their own policies, and those of their hosts' files")
        return
    table = Table("name", "policy", "job", "run", "ranks", "host", "steps", "until", "by", box=None, pad_edge=False)
    for control in controls:
        steps = f"{control.first_step}-{control.last_step}" if control.last_step >= 0 else ""
        ranks = ",".join(map(str, control.ranks)) or "all"
        texts = (control.key, control.policy, control.job, control.run or "all", ranks, control.host, steps,
                 _time(control.until_ns), control.requested_by)  # fmt: skip
        table.add_row(*(escape(escape_controls(text)) for text in texts))
    terminal_console().print(table)


@app.command("clear")
def clear(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Names of `show`.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are in force.")] = False,
) -> None:
    """End policies and deep windows now. Needs Read and Write on drumline.control.v1.

    Exit codes: 0 cleared. 1 Kafka does not answer or rejects. 2 no such name.
    """
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.views.control.control_topic import in_force, write

    if bool(names) == everything:
        exit_with("policy", BAD_INPUT, "name what to clear, or give --all")
    with exit_on_error("policy", NoSuchTopic, BrokerUnreachable):
        keys = [control.key for control in in_force(settings())]
        wanted = keys if everything else list(names or [])
        if unknown := sorted(set(wanted) - set(keys)):
            exit_with("policy", BAD_INPUT, f"not in force: {', '.join(unknown)}; `drumline policy show` lists them")
        write(settings(), [(key, None) for key in wanted])
    echo(f"cleared: {escape_controls(', '.join(wanted)) or 'nothing was in force'}")


def _time(ns: int) -> str:
    return f"{datetime.fromtimestamp(ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
