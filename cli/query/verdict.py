"""`drumline verdict`: who held a recorded job back, from files alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from drumline.cli.console import exit_on_error, replaced
from drumline.cli.progress import files_progress
from drumline.cli.query.evaluate import straggler_config
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

if TYPE_CHECKING:
    from drumline.views.verdict.evaluation import OfflineVerdict

app = typer.Typer(add_completion=False)


@app.command()
def verdict(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...",
            help="one file a rank, a folder of them, or a quoted pattern; a recording; a table of operations",
            show_default=False,
        ),
    ],
    window_steps: Annotated[
        int | None,
        typer.Option(
            min=2, max=100_000, help="Steps a window; default: fewer than DRUMLINE_STREAM__WINDOW_STEPS for few steps."
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the verdict as an HTML page, too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print who held a recorded job back: which rank, why, what it cost, with the evidence.

    It needs the files only: no GPU, Kafka or ClickHouse. The format is recognised by the content: traces of PyTorch's
    profiler (Kineto JSON, also .gz), exports of Nsight Systems (.sqlite), verbose logs of NCCL's Inspector, recordings
    of drumline, tables of operations. Ranks may be missing, steps may have any numbers, and clocks may differ:
    durations are compared.

    Of a job that hangs, it reads dumps of PyTorch's Flight Recorder and the JSON of `ncclras`, and prints which rank
    the others wait for, and in which operation.

    A name needs 8 steps or more; with 4 to 7 a rank may be suspect. With fewer, the data are insufficient, and what is
    left is the time of each rank: compute, copies, exposed communication, idle.

    Exit codes: 0 read and answered, whatever the answer is. 2 a file cannot be read; the message names file and place.
    """
    from drumline.producers.foreign.read_traces import one_format
    from drumline.producers.foreign.recognise import HANG_DUMPS, trace_files
    from drumline.producers.replay.parquet import BadTrace
    from drumline.views.standstill.explain_dumps import print_standstill
    from drumline.views.verdict.evaluation import evaluate_job
    from drumline.views.verdict.recorded_job import job_name, read_job

    with exit_on_error("verdict", BadTrace, code=BAD_INPUT):
        files, left_out = trace_files(paths)
        form = one_format(files)
        if form in HANG_DUMPS:
            if html is not None:
                raise BadTrace(f"--html: {next(iter(files))} is a dump of a hang, which is answered as text or --json")
            raise typer.Exit(print_standstill(files, as_json))
        with files_progress(files, quiet=as_json) as advance:
            job = read_job(list(files), form, job_name(paths[0]), left_out, advance)
    result = evaluate_job(job, straggler_config(settings().stream.window_steps), window_steps)
    price = settings().stream.price_per_gpu_hour
    if html is not None:
        from drumline.views.verdict.html_page import verdict_page

        page = verdict_page(result, price)
        with replaced("verdict", html) as part:
            part.write_text(page, "utf-8")
    if as_json:
        from drumline.views.verdict.answer_text import answer_sentence

        echo(json.dumps({"sentence": answer_sentence(result), **result.as_json()}))
    else:
        _print(result, price)
        if html is not None:
            echo(f"\npage: {html.resolve()}")


def _print(result: OfflineVerdict, price: float) -> None:
    from drumline.views.verdict import answer_text as text

    console = terminal_console(file=sys.stdout)

    def print_line(line: str = "", indent: int = 0) -> None:
        """Print one line, its further lines below its own begin."""
        message = Text(escape_controls(line))
        console.print(Padding(message, (0, 0, 0, indent)) if console.is_terminal else Text(" " * indent) + message)

    print_line(text.answer_sentence(result))
    lines = text.evidence_lines(result, price)
    width = max((len(heading) for heading, _ in lines), default=0)
    if lines:
        print_line()
    for heading, line in lines:
        print_line(f"{heading:<{width}}  {line}", indent=2)
    if rows := text.budget_rows(result):
        table = Table(title="time of each rank", title_justify="left")
        for header in text.headers(result):
            table.add_column(header, justify="left" if header == "rank" else "right")
        for cells in rows:
            table.add_row(*(escape_controls(cell) for cell in cells))
        print_line()
        console.print(table)
        print_line(text.budget_note(result))
    for title, sentences in (("evaluated", text.coverage_lines(result)), ("surer", text.surer_lines(result))):
        if sentences:
            print_line()
            print_line(title)
        for sentence in sentences:
            print_line(sentence, indent=2)
