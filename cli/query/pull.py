"""`drumline pull`: publish rows that stayed on their hosts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from drumline.cli.console import exit_on_error, exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console
from drumline.schemas.topics import Topic

if TYPE_CHECKING:
    from drumline.views.control.pulls import RankAnswer

app = typer.Typer(add_completion=False)
POLL_S = 0.5
#: Time between two lines about what is waited for; s.
LINE_S = 5.0


class PullProgress:
    """States on how many ranks a pull waits, at once and then every LINE_S seconds. Pure: `now_s` is monotonic, s."""

    def __init__(self, ranks: int, wait_s: float, now_s: float) -> None:
        self._ranks, self._wait_s, self._begun_s, self._next_s = ranks, wait_s, now_s, now_s

    def line(self, done: int, answered: int, now_s: float) -> str:
        """Return what to print now, "" for nothing. `done`: ranks that have answered to the end."""
        if now_s < self._next_s or done >= self._ranks:
            return ""
        self._next_s = now_s + LINE_S
        left_s = max(0.0, self._begun_s + self._wait_s - now_s)
        text = f"waiting for {self._ranks - done} of {self._ranks} ranks"
        text += "" if answered else "; no agent has answered yet, only those that keep rows (policy rollup) do"
        return f"{text}; {left_s:.0f} s left"


@app.command()
def pull(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql jobs` lists them.")],
    steps: Annotated[str, typer.Option(metavar="FIRST-LAST", help="The steps: 100-119, or 100; 200 at most.")],
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    ranks: Annotated[str, typer.Option(help="Ranks: 3,7 or 0-7; default: all.")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the answers; 0: do not wait.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answers as one JSON object.")] = False,
) -> None:
    """Publish kernels, copies and ranges of some steps that stayed on their hosts (policy `rollup`).

    The agents of the named ranks publish them once: what was published before does not come again, and steps that are
    deleted there are stated, with those that are left. The newest rows follow when their segment is closed, after 30 s.
    Needs Write on drumline.control.v1, and ClickHouse.

    Exit codes: 0 all ranks have answered. 1 some did not, or rejected; or a server does not answer. 2 no such job, run
    or rank, or a bad option.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.kafka.connect import BrokerUnreachable
    from drumline.infra.kafka.tail import NoSuchTopic
    from drumline.schemas.control import BadControl
    from drumline.views.control import pulls
    from drumline.views.control.control_topic import write
    from drumline.views.control.ranks import BadRankList, ranks_of
    from drumline.views.report.data import NoSuchRun, find_run

    config = settings()
    with (
        exit_on_error("pull", NoSuchRun, BadRankList, BadControl, pulls.BadSteps, code=BAD_INPUT),
        exit_on_error("pull", ClickHouseFailed, StackError, NoSuchTopic, BrokerUnreachable),
    ):
        wanted, named = pulls.steps_of(steps), ranks_of(ranks)
        client = connect(config, reader=True, database=config.clickhouse.database)

        def query(sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
            return rows(client, sql, values)

        run = str(find_run(query, job, run)[0]["run"])
        known = {row["rank"]: row["hosts"] for row in query(pulls.HOSTS, {"job": job, "run": run})}
        if strange := sorted(set(named) - known.keys()):
            raise NoSuchRun(f"run {run} has no rank {', '.join(map(str, strange))}")
        control = pulls.pull_of(job, run, named, wanted, time.time_ns())
        write(config, [(control.key, control)])
        expected, until = sorted(named or known), time.monotonic() + wait
        answers: list[RankAnswer] = []
        progress = PullProgress(len(expected), wait, time.monotonic())
        while time.monotonic() < until and not pulls.are_complete(answers, expected):
            time.sleep(POLL_S)
            answers = pulls.answers(query, control, known)
            done = sum(answer.answer != pulls.RUNNING for answer in answers)
            if line := progress.line(done, len(answers), time.monotonic()):
                echo(line, err=True)
    if as_json:
        echo(json.dumps({"name": control.key, "job": job, "run": run, "first_step": wanted[0], "last_step": wanted[1],
                         "ranks": [answer.as_row() for answer in answers]}))  # fmt: skip
    else:
        _print(control.key, answers)
    missing = sorted(set(expected) - {answer.rank for answer in answers if answer.answer == pulls.DONE})
    if wait and missing:
        exit_with(
            "pull",
            FAILED,
            f"not done: rank {', '.join(map(str, missing))}: only agents that keep rows (policy rollup) answer; they "
            f"need Read on {Topic.CONTROL}, and go on without this command",
        )


def _print(name: str, answers: list[RankAnswer]) -> None:
    echo(name)
    table = Table("rank", "host", "answer", "what", box=None, pad_edge=False)
    for answer in answers:
        texts = (str(answer.rank), answer.host, answer.answer, answer.text)
        table.add_row(*(escape(escape_controls(text)) for text in texts))
    terminal_console().print(table)
