"""`drumline import`: traces that other tools recorded become a recording of drumline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.console import exit_on_error, exit_with
from drumline.cli.progress import files_progress
from drumline.infra.runtime.exit_codes import BAD_INPUT
from drumline.infra.runtime.terminal import echo, escape_controls

if TYPE_CHECKING:
    from drumline.producers.foreign.trace_summary import TraceSummary

app = typer.Typer(add_completion=False)


@app.command(name="import")
def import_traces(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES...", help="one file a rank, a folder of them, or a quoted pattern", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write; it must not exist, or be empty.")
    ] = Path("recording"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write traces of other tools as a recording, which `replay`, `evaluate` and `verdict` read.

    The format is recognised by the content: traces of PyTorch's profiler (Kineto JSON, also .gz), exports of Nsight
    Systems, logs of NCCL's Inspector. Memory does not grow with the number of files. A file that is cut off, broken,
    or of a rank that another file has ends it; then DIR has no manifest.json. Ranks come from the files, else from
    their names, else from their order, which is reported.

    Exit codes: 0 written. 2 a file cannot be read, or DIR cannot be written; the message names file and place.
    """
    from drumline.producers.foreign.read_traces import one_format, read_traces
    from drumline.producers.foreign.recognise import trace_files
    from drumline.producers.foreign.write_recording import write_recording
    from drumline.producers.replay.parquet import BadTrace

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        exit_with("import", BAD_INPUT, f"{output} exists already; name another folder with -o")
    with exit_on_error("import", BadTrace, OSError, code=BAD_INPUT), files_progress(paths, quiet=as_json) as advance:
        files, left_out = trace_files(paths)
        traces = read_traces(list(files), one_format(files), advance)
        summary = write_recording(output, traces, output.resolve().name)
    if as_json:
        echo(json.dumps({"path": str(output.resolve()), "files_left_out": left_out, **summary.as_json()}))
        return
    for line in [*_lines(summary), *left_out]:
        echo(escape_controls(line))
    echo(f"recording: {output.resolve()}")


def _lines(summary: TraceSummary) -> list[str]:
    """Return what was read, what was left out and why, and what was assumed."""
    counts: dict[str, Any] = summary.rows
    read = f"{counts['kernels']:,} kernels, {counts['copies']:,} copies, {counts['collectives']:,} operations of NCCL"
    steps = f"steps {summary.first_step} to {summary.last_step}" if summary.last_step >= 0 else "no marked steps"
    lines = [f"{len(summary.ranks)} ranks, {steps}, {read} ({', '.join(summary.formats)})"]
    lines += [text] if (text := summary.missing()) else []
    lines += [f"left out: {count:,} records, {reason}" for reason, count in summary.left_out.items()]
    return lines + [f"{note} ({count} file{'s' if count > 1 else ''})" for note, count in summary.notes.items()]
