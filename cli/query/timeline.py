"""`drumline timeline`: steps of a job, or requests of an inference engine, as a trace for Perfetto."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.console import exit_on_error, exit_with, replaced
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

if TYPE_CHECKING:
    from drumline.views.timeline.job_trace import Timeline
    from drumline.views.timeline.request_trace import RequestTimeline

app = typer.Typer(add_completion=False)
#: Most ranks that can be named.
MOST_RANKS = 65_536


@app.command()
def timeline(
    job: Annotated[str, typer.Option(help="The job's name; `drumline sql jobs` lists them.")],
    steps: Annotated[str, typer.Option(help="Steps: 100-110, or one number.")] = "",
    request: Annotated[
        str, typer.Option(help="A request of an inference engine, as `sql serving-requests` names it.")
    ] = "",
    trace: Annotated[str, typer.Option(help="All requests of a caller's trace: 32 hexadecimal digits.")] = "",
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    ranks: Annotated[str, typer.Option(help="Ranks: 0,3 or 0-7; default: all.")] = "",
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The file to write; *.json.gz: Chrome's trace events.")
    ] = Path("timeline.pftrace"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Write --steps, a --request or a caller's --trace for https://ui.perfetto.dev: it reads the file in the browser.

    Each rank is a process with tracks: verdicts, steps, NVTX ranges, collectives, the streams of its GPU, counters of
    the GPU, and Python stacks that were sampled then. Arrows join a collective on all ranks. Ranks are aligned by
    the ends of their collectives, not by their clocks. Kernels and copies are there where CUPTI recorded them.
    The local engine is started if it is down.

    A request is a process too: queue, prefill, decode, and the iterations from its first to its last. Arrows join them
    to those of its engine. That has its scheduler, its queue, and the streams, counters and stacks of its rank.

    A file named *.json.gz has the same as Chrome's trace events, which chrome://tracing reads.

    Exit codes: 0 written. 1 ClickHouse does not answer. 2 no such job, run, step or rank, more rows than a trace may
    have, or the file cannot be written.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.control.ranks import BadRankList, ranks_of
    from drumline.views.report.data import NoSuchRun
    from drumline.views.timeline.chrome_writer import ChromeWriter
    from drumline.views.timeline.job_trace import timeline as load
    from drumline.views.timeline.rank_tracks import TooMuch
    from drumline.views.timeline.request_trace import request_timeline
    from drumline.views.timeline.trace_writer import TraceWriter

    config = settings()
    if sum(map(bool, (steps, request, trace))) != 1:
        exit_with("timeline", BAD_INPUT, "give one of --steps 100-110, --request ID and --trace ID")
    if trace and not re.fullmatch("[0-9a-fA-F]{32}", trace):
        exit_with("timeline", BAD_INPUT, f"--trace {trace!r} is no trace id; it has 32 hexadecimal digits")
    first, last = _steps(steps) if steps else (0, 0)
    with exit_on_error("timeline", BadRankList, code=BAD_INPUT):
        wanted = ranks_of(ranks, MOST_RANKS)
    with (
        exit_on_error("timeline", NoSuchRun, TooMuch, code=BAD_INPUT),
        exit_on_error("timeline", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)
        form = ChromeWriter if output.name.endswith(".json.gz") else TraceWriter

        def query(sql: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
            return rows(client, sql, values)

        written: Timeline | RequestTimeline
        if steps:
            written = load(query, job, run, first, last, wanted, form=form)
            facts = {"first_step": first, "last_step": last, "ranks": written.ranks,
                     "unaligned_ranks": written.unaligned}  # fmt: skip
            title, size, unaligned = f"steps {first} to {last}", f"{len(written.ranks)} ranks", written.unaligned
        else:
            written = request_timeline(query, job, run, request, trace, form=form)
            facts = {"requests": written.requests, "iterations": written.iterations}
            title = f"{len(written.requests)} request{'s' if len(written.requests) != 1 else ''}"
            size, unaligned = f"{written.iterations:,} iterations", []
    with replaced("timeline", output) as part:
        part.write_bytes(written.trace)
    if as_json:
        place = {"path": str(output.resolve()), "job": job, "run": written.run}
        echo(json.dumps({**place, **facts, "slices": written.slices}))
        return
    size = f"{size}, {written.slices:,} slices, {len(written.trace) / 1e6:.1f} MB"
    echo(f"{escape_controls(job)}, run {escape_controls(written.run)}, {title}: {size}")
    if unaligned:
        echo(f"ranks {', '.join(map(str, unaligned))}: no collective joins them to the others; their own clock")
    echo(f"timeline: {output.resolve()}; open it at https://ui.perfetto.dev")


def _steps(text: str) -> tuple[int, int]:
    """Return the bounds of "3" or "3-7". Exits with BAD_INPUT for another text."""
    match = re.fullmatch(r"\s*(\d{1,18})\s*(?:[-:]\s*(\d{1,18})\s*)?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        exit_with("timeline", BAD_INPUT, f"--steps {text!r} is no span of numbers; for example: --steps 100-110")
    return first, last
