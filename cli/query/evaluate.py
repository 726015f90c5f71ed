"""`drumline evaluate`: the straggler code over a recorded job, without Kafka, scored by the injected faults."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from drumline.cli.console import exit_with
from drumline.infra.config.settings import settings
from drumline.infra.runtime.exit_codes import BAD_INPUT, FAILED, INTERRUPTED, OK
from drumline.infra.runtime.terminal import echo, terminal_console
from drumline.lab.evaluate.scoring import (
    INSUFFICIENT,
    WHOLE_JOB,
    BadManifest,
    EvaluationReport,
    Phase,
    evaluate_phases,
    light_phases,
    recommended_window,
)
from drumline.views.verdict.verdict_rows import VerdictRow

if TYPE_CHECKING:
    from drumline.streams.core.thresholds import StragglerConfig

app = typer.Typer(add_completion=False)
#: Panel of the options of --curve in the help.
CURVE = "with --curve"


@app.command()
def evaluate(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...",
            help="a recorded job: manifest.json, and Parquet tables or rows.jsonl.xz; or a table of operations; "
            "several with --curve",
        ),
    ],
    window_steps: Annotated[
        int | None,
        typer.Option(
            min=2, help="steps a window; default: what fits the phases, at most DRUMLINE_STREAM__WINDOW_STEPS"
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    side_by_side: Annotated[
        bool, typer.Option("--compare", help="run published methods over the same data too")
    ] = False,
    light: Annotated[bool, typer.Option("--light", help="derive everything from NCCL's operations alone")] = False,
    curve: Annotated[
        bool, typer.Option("--curve", help="measure recall over time and names in healthy windows")
    ] = False,
    windows: Annotated[
        int, typer.Option(min=0, help="healthy windows drawn from each recording", rich_help_panel=CURVE)
    ] = 3000,
    faults: Annotated[
        int, typer.Option(min=0, help="faults injected of each kind and size", rich_help_panel=CURVE)
    ] = 2,
    seed: Annotated[int, typer.Option(help="of all that is drawn", rich_help_panel=CURVE)] = 0,
    page: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write the page there too: docs/results/curve.md", rich_help_panel=CURVE),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="processes; default: one a usable core", rich_help_panel=CURVE)
    ] = None,
    note: Annotated[str, typer.Option(help="a sentence below the page's title", rich_help_panel=CURVE)] = "",
) -> None:
    """Run the straggler code over DIR as a stream and score each phase of its manifest.

    The code under evaluation never reads the phases. Windows that lie wholly inside a phase count. A rank is found if
    at least half of them name it at warning or above. Recall and cause accuracy are over counted fault phases, false
    alarms over counted healthy ones. Other results of a phase (suspects, windows without enough data) are printed below
    the table, and in JSON as `besides`, `unjudged`. A phase without an evaluated window is not right.

    --compare also runs NVRx, TraceML, HTA, ingero, and the longest collective over the same data, with the same scoring
    (docs/design/comparison.md). JSON then has `methods`, drumline first, and the window's steps.

    --light evaluates DIR as the light tier would have recorded it: of each NCCL operation the host's call (its NVTX
    range) and its time on the GPU (its kernel), and no other kernel or copy. More compute is then `slow_gpu`, whatever
    made it, and a copy that the host waits for is `host_stall`: both are right for their phases.

    A table of operations (trace-X.parquet with meta-X.yaml beside it: step, rank, stage, dp_rank, optype, start_ts,
    duration in s) has no phases. Then the verdicts themselves are printed, ranks and steps numbered from 0, and the
    exit code is 0. Waits that were not recorded are stated: nothing runs on some ranks, and they go on together.

    --curve prints a Markdown page instead, of each DIR in both tiers where it has kernels. It shows how soon each fault
    is named by what it really costs, whether it stays named, wrong names, and names per 1,000 healthy windows. It also
    shows the share of windows that are evaluated, why not the rest, and lost time stated against true.
    Faults are also injected into steps drawn from the healthy phases: host, GPU, every 4th step, bursts, loader, link,
    of 3 to 50 % of a step. A recording and tier takes 1 to 5 minutes; --windows 100 --faults 1 half a minute.

    Exit codes: 0 all counted phases right (--curve: measured), 1 not, 2 bad input.
    """
    if curve:
        _curve(folders, window_steps, (windows, faults, seed), as_json, page, note, jobs, side_by_side or light)
        return
    if len(folders) != 1:
        exit_with("evaluate", BAD_INPUT, "one DIR, or several with --curve")
    [folder] = folders
    try:
        from drumline.producers.replay.operation_table.table_reader import find_table

        if (table := find_table(folder)) is not None:
            from drumline.cli.query.table_verdicts import print_verdicts

            if light or side_by_side:
                raise ValueError("--light and --compare need a recording with kernels, not a table of operations")
            print_verdicts(table, straggler_config(settings().stream.window_steps), window_steps, as_json)
            return
        if light and side_by_side:
            raise ValueError("--light and --compare: the other methods need kernels; use one of them")
        phases = light_phases(read_phases(folder)) if light else read_phases(folder)
        steps = window_steps or recommended_window(phases, settings().stream.window_steps)
        rows = list(straggler_rows(folder, steps, quiet=as_json, light=light))
        report = evaluate_phases(phases, rows)
        if side_by_side:
            _compare(folder, steps, phases, report, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (BadManifest, OSError, ValueError) as error:
        exit_with("evaluate", BAD_INPUT, str(error) if str(folder) in str(error) else f"{folder}: {error}")
    if as_json and not side_by_side:
        echo(json.dumps(report.as_json()))
    elif not side_by_side:
        _print(report, folder.name, steps)
    if missing := report.without_result:
        echo(
            f"drumline evaluate: no window of {steps} steps fits into, or could be evaluated in, {len(missing)} "
            f"counted phases ({', '.join(missing)}): neither found nor cleared; try another --window-steps",
            err=True,
        )
    if not phases:
        echo(
            f"drumline evaluate: no phases, so nothing is scored; `drumline verdict {folder}` has the verdicts",
            err=True,
        )
    if note := no_result_note(rows):
        echo(f"drumline evaluate: {note}", err=True)
    raise typer.Exit(OK if report.right else FAILED)


def _curve(
    folders: list[Path],
    window_steps: int | None,
    drawn: tuple[int, int, int],
    as_json: bool,
    page: Path | None,
    note: str,
    jobs: int | None,
    is_combined: bool,
) -> None:
    from drumline.cli.query.evaluate_curve import run_curve
    from drumline.lab.evaluate.curve.injector import DrawPlan

    try:
        if is_combined:
            raise ValueError("--curve measures both tiers, without the published methods; leave --light, --compare out")
        config = straggler_config(window_steps or settings().stream.window_steps)
        recordings = {folder: _named_phases(folder) for folder in folders}
        jobs = jobs or len(os.sched_getaffinity(0))
        run_curve(recordings, config, DrawPlan(*drawn), as_json, page, note, version("drumline"), jobs)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except (BadManifest, OSError, ValueError) as error:
        exit_with("evaluate", BAD_INPUT, f"--curve: {error}")


def _named_phases(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_phases(folder)
    except BadManifest as error:
        raise BadManifest(f"{folder}: {error}") from None


def straggler_config(window_steps: int) -> StragglerConfig:
    """Return the thresholds of the worker's settings, for windows of so many steps."""
    from drumline.streams.core.thresholds import StragglerConfig

    stream = settings().stream
    return StragglerConfig(
        window_steps=window_steps,
        idle_ns=int(stream.idle_s * 1e9),
        price_per_gpu_hour=stream.price_per_gpu_hour,
    )


def _compare(
    folder: Path, steps: int, phases: list[dict[str, Any]], drumline_report: EvaluationReport, as_json: bool
) -> None:
    try:
        from drumline.lab.evaluate.compare import compare
        from drumline.lab.evaluate.comparison_table import legend, table
    except ModuleNotFoundError as error:
        raise ValueError(f"--compare: {error}; install the checkout again: pip install -e .") from None

    results = compare(folder, steps, phases, drumline_report)
    if as_json:
        echo(json.dumps({"window_steps": steps, "methods": [result.as_json() for result in results]}))
        return
    console = terminal_console(file=sys.stdout)
    console.print(table(results, f"{folder.name}, windows of {steps} steps"))
    console.print(legend(results), highlight=False, markup=False)


def no_result_note(rows: list[VerdictRow]) -> str:
    """Return a note where no rank could be evaluated in any window; "" where some could."""
    ranks = [row for row in rows if row.rank >= 0]
    if not rows:
        return "no window was evaluated: the recording has no whole steps"
    if any(row.severity != INSUFFICIENT for row in ranks):
        return ""
    details = " ".join(sorted({row.detail for row in ranks if row.detail}))
    reason = f" ({details})" if details else ""
    return (
        f"no rank was evaluated, insufficient data in all windows{reason}: "
        "a rank needs peers and collectives that they share; "
        "the job as a whole is compared with its earlier windows"
    )


def read_phases(folder: Path) -> list[dict[str, Any]]:
    """Return the phases of a recording's manifest. Raises BadManifest, OSError."""
    path = folder / "manifest.json"
    if not path.is_file():
        inside = [manifest.parent.name for manifest in sorted(folder.glob("*/manifest.json"))]
        hint = f"; it holds {len(inside)} recordings, evaluate each: {', '.join(inside)}" if inside else ""
        raise BadManifest(f"no manifest.json there; DIR is a folder of recorded Parquet tables with one{hint}")
    try:
        phases = json.loads(path.read_text()).get("phases")
    except (ValueError, AttributeError) as error:
        raise BadManifest(f"manifest.json is not a JSON object ({error})") from None
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        raise BadManifest("manifest.json has no list of phases")
    return phases


def straggler_rows(folder: Path, window_steps: int, quiet: bool = True, light: bool = False) -> Iterator[VerdictRow]:
    """Yield the verdict rows of the last revision of each window. `light`: derive from the NCCL operations alone.

    The recording is read through a copy of its folder whose manifest has no phases. Raises ValueError with the name of
    an unreadable file.
    """
    from drumline.lab.evaluate.verdict_rows import verdict_rows
    from drumline.producers.replay.published import is_published, read_published
    from drumline.producers.replay.recording import RecordedJob
    from drumline.schemas.topics import Topic
    from drumline.streams.offline import verdicts

    config = straggler_config(window_steps)
    topics = {Topic.COLLECTIVE, Topic.STEP, Topic.PROCESS, Topic.DEVICE}
    if light and is_published(folder):
        raise ValueError("--light: the recording holds the rows of its own tier; leave it out")
    with tempfile.TemporaryDirectory(prefix="drumline-evaluate-") as copy:
        copied = without_phases(folder, Path(copy))
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=terminal_console(stderr=True), transient=True, disable=quiet) as progress:
            task = progress.add_task("reading the recording", total=None)
            batches_out = []
            try:
                if is_published(copied):
                    batches = read_published(copied)
                else:
                    recorded = RecordedJob(copied, topics=topics, light=light)
                    batches = ((out.time_ns, out.batch) for out in recorded.batches())
                for batch in verdicts(batches, config):
                    batches_out.append(batch)
                    progress.update(task, description=f"evaluated to step {batch.envelope['last_step']}")
            except (OSError, ValueError) as error:  # names a file: the user's, not its copy
                raise ValueError(str(error).replace(str(copied), str(folder))) from None
    yield from verdict_rows(batches_out)


def without_phases(folder: Path, copy: Path) -> Path:
    """Fill `copy` with links to the recording's files and a manifest without phases, and return it."""
    for path in folder.resolve().iterdir():
        if path.name != "manifest.json":
            (copy / path.name).symlink_to(path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("phases", None)
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def _judgement(phase: Phase) -> str:
    if not phase.counted:
        return "not counted"
    if not phase.is_evaluated:
        return "not evaluated" if phase.windows else "too short"
    return "yes" if phase.right else "NO"


def remarks(report: EvaluationReport) -> list[str]:
    """Return lines about windows without data, ranks named but not found, and windows across phases."""
    lines = []
    for phase in report.phases:
        where, of = f"{phase.phase} (steps {phase.first_step}-{phase.last_step})", f"of {phase.windows} windows"
        if phase.not_evaluated:
            details = f" ({', '.join(phase.reasons)})" if phase.reasons else ""
            lines.append(f"{where}: {phase.not_evaluated} {of} not evaluated, insufficient data{details}")
        for rank, counts in sorted(phase.besides.items()):
            subject = "the job" if rank == WHOLE_JOB else f"rank {rank}"
            lines.append(f"{where}: {subject} {', '.join(f'{cause} in {n}' for cause, n in counts.items())} {of}")
    if report.across:
        lines.append(f"{report.across} windows lie across the bounds of phases and count for none")
    return lines


def _print(report: EvaluationReport, name: str, window_steps: int) -> None:
    table = Table(title=f"{name}, windows of {window_steps} steps", title_justify="left")
    for column in ("phase", "windows", "injected", "found", "lost", "right"):
        table.add_column(column, justify="right" if column in ("windows", "lost") else "left")
    for phase in report.phases:
        cells = [*phase.found_ranks, phase.found_cause, phase.found_detail] if phase.found_cause else []
        table.add_row(
            phase.phase,
            str(phase.windows),
            " ".join(map(str, [*phase.expected_ranks, "|".join(phase.accepted_causes)])),
            " ".join(str(part) for part in cells),
            f"{phase.lost_share:.1%}",
            _judgement(phase),
        )
    terminal_console(file=sys.stdout).print(table)
    for line in remarks(report):
        echo(line)
    numbers = {"recall": report.recall, "cause accuracy": report.cause_accuracy, "false alarms": report.false_alarms}
    echo(", ".join(f"{name} {'n/a' if value is None else value}" for name, value in numbers.items()))
