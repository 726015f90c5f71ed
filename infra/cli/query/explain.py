"""`drumline explain`: one screen about a late rank."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from drumline.infra.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    job: Annotated[str, typer.Argument(help="The job's name; `drumline sql jobs` lists them.", show_default=False)],
    rank: Annotated[
        int | None, typer.Option(min=-1, help="Only this rank; -1: the job as a whole. Default: the 5 most expensive.")
    ] = None,
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Explain who held a job back: cause, cost, evidence, how to check it, what to do, and the next command.

    Of each rank it shows the most expensive episode, and the cost of all. The local engine is started if it is down.

    Exit codes: 0 explained, also if no rank is late or there is not enough data: it states which. 1 ClickHouse does not
    answer. 2 no such job, run or rank.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.infra.report.data import NoSuchRun
    from drumline.infra.report.explanation import explain as load
    from drumline.infra.report.explanation import hang_lines, no_verdict

    config = settings()
    with (
        exit_on_error("explain", NoSuchRun, code=BAD_INPUT),
        exit_on_error("explain", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)
        chosen, texts, windows, hangs = load(lambda sql, values: rows(client, sql, values), job, run, rank)
    if as_json:
        verdicts = [text.as_json() for text in texts]
        counts = {"windows": int(windows["windows"]), "evaluated": int(windows["evaluated"])}
        echo(json.dumps({"job": job, "run": chosen["run"], **counts, "hangs": hangs, "verdicts": verdicts}))
        return
    echo(f"{escape_controls(job)}, run {escape_controls(chosen['run'])}, {chosen['ranks']} ranks")
    for line in hang_lines(hangs):
        echo(escape_controls(line))
    for line in [line for text in texts for line in text.lines()] or [no_verdict(windows, rank, int(chosen["ranks"]))]:
        echo(escape_controls(line))
