"""`drumline explain`: one screen about a late rank."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import Annotated

import typer

from drumline.cli.console import exit_on_error
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls, terminal_console

app = typer.Typer(add_completion=False)


@app.command()
def explain(
    job: Annotated[str, typer.Argument(help="The job's name; `drumline sql jobs` lists them.", show_default=False)],
    rank: Annotated[
        int | None, typer.Option(min=-1, help="This rank; -1: the job as a whole. Default: the most expensive one.")
    ] = None,
    run: Annotated[str, typer.Option(help="A run of it; default: the newest.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All ranks that are late, and all standstills.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Explain who held a job back: cause, cost, evidence, how to check it, what to do, and the next command.

    It shows the most expensive rank on one screen, and names the rest. Of a rank it shows the most expensive episode,
    and the cost of all. --json has the 5 most expensive ranks. The local engine is started if it is down.

    Exit codes: 0 explained, also if no rank is late or there is not enough data: it states which. 1 ClickHouse does not
    answer. 2 no such job, run or rank.
    """
    from drumline.infra.clickhouse.client import ClickHouseFailed, connect, rows
    from drumline.infra.config.state_dir import StackError
    from drumline.infra.guidance.stages import unequal_stages_text
    from drumline.infra.localstack.clickhouse.engine import ensure_engine
    from drumline.views.report.data import NoSuchRun
    from drumline.views.report.explanation import MOST_RANKS, also_late_line, hang_lines
    from drumline.views.report.explanation import explain as load
    from drumline.views.report.gaps import attempts_text, no_verdict, unreported_text
    from drumline.views.report.text import OWNERS, labelled

    config = settings()
    with (
        exit_on_error("explain", NoSuchRun, code=BAD_INPUT),
        exit_on_error("explain", ClickHouseFailed, StackError),
        ensure_engine(config),
    ):
        client = connect(config, reader=True, database=config.clickhouse.database)
        most = None if everything else MOST_RANKS if as_json else 1
        explained = load(lambda sql, values: rows(client, sql, values), job, run, rank, most=most)
    chosen, texts, windows, hangs, also_late, *_ = explained
    stages = unequal_stages_text(windows["stages"]) if rank is None else ""
    if as_json:
        verdicts = [text.as_json() for text in texts]
        counts = {"windows": int(windows["windows"]), "evaluated": int(windows["evaluated"])}
        echo(json.dumps({"job": job, "run": chosen["run"], "labels": chosen["labels"], **counts,
                         "attempts": chosen["attempts"], "hangs": hangs,
                         "verdicts": verdicts, "unreported": chosen["unreported"],
                         "unreported_ranks": chosen["unreported_ranks"], "world": chosen["world"],
                         "other_late_ranks": [text.rank for text in also_late],
                         "stages": stages, "is_cut": explained.is_cut}))  # fmt: skip
        return
    owner = labelled(chosen["labels"], OWNERS)
    echo(escape_controls(f"{job}, run {chosen['run']}, {chosen['ranks']} ranks" + (f"; {owner}" if owner else "")))
    shown = hangs if everything else hangs[:1]
    lines = [text for text in (attempts_text(chosen, job), unreported_text(chosen)) if text]
    lines += hang_lines(shown, job)
    if len(shown) < len(hangs):
        lines.append(f"It stood still {len(hangs) - len(shown)} times more; --all shows them.")
    nothing = no_verdict(windows, rank, int(chosen["ranks"]), hangs)
    lines += [line for text in texts for line in text.lines()] or [nothing]
    if also_late:
        lines.append(also_late_line(job, explained))
    elif explained.is_cut:
        lines.append(f"Of the {len(explained.episodes)} most expensive episodes; --rank shows those of another rank.")
    lines += [stages] if stages else []
    width = terminal_console().width if sys.stdout.isatty() else 0
    for line in lines:
        echo(_wrapped(escape_controls(line), width))


def _wrapped(line: str, width: int) -> str:
    """Return a line wrapped below its text, but commands, which people copy; `width` 0: as it is, for a pipe."""
    if not width or line.startswith("  next "):
        return line
    return textwrap.fill(
        line, max(width, 40), subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False
    )
