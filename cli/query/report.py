"""`drumline report`: a self-contained HTML page about a job."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error, exit_with, replaced
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo
from drumline.infra.runtime.times import BadTime, clickhouse_time, parse_time

app = typer.Typer(add_completion=False)


@app.command()
def report(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql 'SELECT job, run FROM jobs'` lists them.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("report.html"),
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    since: Annotated[
        str,
        typer.Option(help="Only from this time on: 1h, 90m or 2d ago, now, or YYYY-MM-DDThh:mm (UTC, or an offset)."),
    ] = "",
    until: Annotated[str, typer.Option(help="Only until this time.")] = "",
    price: Annotated[
        float | None, typer.Option(min=0, help="Of a GPU-hour; default DRUMLINE_STREAM__PRICE_PER_GPU_HOUR.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print path and summary as one JSON object.")] = False,
) -> None:
    """Write an HTML page about a job: stragglers, causes, cost, and the work of its GPUs.

    The page needs no network and runs no script: mail it, archive it, print it. It shows step times with the verdicts,
    lateness by rank, the verdicts' evidence, cost, top kernels, copies and GPU samples. It states where
    there is not enough data for a verdict. The local engine is started if it is down.

    Exit codes: 0 written. 1 ClickHouse does not answer. 2 no such job or run, no data in that time, or the file cannot
    be written.
    """
    from drumline.views.report.charts import start_drawing

    start_drawing()  # beside all that follows
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.report.data import NoSuchRun
    from drumline.views.report.loading import load
    from drumline.views.report.page import draw_ahead, page, prepare
    from drumline.views.report.text import summary

    config = settings()
    start, end = _time("--since", since), _time("--until", until)
    if start and end and start >= end:
        exit_with("report", BAD_INPUT, f"--since {since} is not before --until {until}")
    cost = config.stream.price_per_gpu_hour if price is None else price
    with (
        exit_on_error("report", NoSuchRun, code=BAD_INPUT),
        exit_on_error("report", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)
        Thread(target=prepare, daemon=True).start()  # beside the queries, as the charts
        data = load(lambda sql, parameters: rows(client, sql, parameters), job, run, start, end, cost, draw_ahead)
    text = page(data, web_page=config.serve.url.partition(",")[0].strip())
    with replaced("report", output) as part:
        part.write_text(text, "utf-8")
    if as_json:
        echo(json.dumps({"path": str(output.resolve()), "job": job, "run": data.run["run"], "summary": summary(data)}))
        return
    for sentence in summary(data):
        echo(sentence)
    echo(f"report: {output.resolve()}")


def _time(name: str, text: str) -> str:
    """Return a time in the form of ClickHouse's DateTime64(9, 'UTC'). Exits with BAD_INPUT if it is no time."""
    try:
        return clickhouse_time(parse_time(text, datetime.now(UTC))) if text else ""
    except BadTime as error:
        exit_with("report", BAD_INPUT, f"{name} {error}")
