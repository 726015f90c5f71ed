"""Runs `drumline evaluate --curve`: reads recordings in each of their tiers, measures them, writes the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from drumline.infra.runtime.terminal import echo, terminal_console
from drumline.lab.evaluate.scoring import light_phases, recommended_window

if TYPE_CHECKING:
    from drumline.lab.evaluate.curve.injector import DrawPlan
    from drumline.lab.evaluate.curve.measure import Curve
    from drumline.streams.core.thresholds import StragglerConfig

Phases = Sequence[Mapping[str, Any]]


def run_curve(
    recordings: Mapping[Path, Phases],
    config: StragglerConfig,
    plan: DrawPlan,
    as_json: bool,
    page_path: Path | None,
    note: str,
    drumline_version: str,
    jobs: int,
) -> None:
    """Measure recordings and print the page, or one JSON object. Raises ValueError, OSError.

    `recordings`: folder -> phases of its manifest. `page_path`: where the page is also written. `jobs`: processes.
    """
    from drumline.lab.evaluate.curve.curve_page import MARK, page
    from drumline.lab.evaluate.curve.curve_page import as_json as curves_json
    from drumline.lab.evaluate.curve.recorded_job import tiers

    if page_path is not None and page_path.exists() and not page_path.read_text().startswith(MARK):
        raise ValueError(f"--page {page_path} holds another page; it would be replaced")
    tasks = [
        (folder, light, light_phases(phases) if light else phases)
        for folder, phases in recordings.items()
        for light in tiers(folder)
    ]
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=terminal_console(stderr=True), transient=True, disable=as_json) as progress:
        task = progress.add_task("reading the recordings", total=None)
        if jobs == 1:
            curves = [
                _curve(*values, config, plan, partial(_show, progress, task, f"{number} of {len(tasks)}"))
                for number, values in enumerate(tasks, 1)
            ]
        else:
            curves = _in_parallel(tasks, config, plan, jobs, partial(_show, progress, task))
    if as_json:
        echo(json.dumps({"curves": curves_json(curves)}))
    names = " ".join(str(folder) for folder in recordings)
    command = (
        f"drumline evaluate --curve {names} --windows {plan.windows} --faults {plan.replicates} --seed {plan.seed}"
    )
    text = page(curves, command, note, f"Measured by drumline {drumline_version}.")
    if page_path is not None:
        page_path.write_text(text)
    if not as_json:
        echo(text)


def _show(progress: Progress, task: Any, head: str, text: str) -> None:
    progress.update(task, description=f"{head}, {text}")


def _in_parallel(
    tasks: Sequence[tuple[Path, bool, Phases]],
    config: StragglerConfig,
    plan: DrawPlan,
    jobs: int,
    show: Callable[[str, str], None],
) -> list[Curve]:
    """Return the curve of each task, in their order."""
    with ProcessPoolExecutor(min(jobs, len(tasks)), get_context("spawn")) as pool:
        futures = [pool.submit(_curve, *values, config, plan, _quiet) for values in tasks]
        try:
            for number, future in enumerate(as_completed(futures), 1):
                show(f"{number} of {len(tasks)} measured", f"{future.result().name} was the last")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _quiet(_text: str) -> None:
    """Show nothing: a process of the pool has no terminal."""


def _curve(
    folder: Path, light: bool, phases: Phases, config: StragglerConfig, plan: DrawPlan, show: Callable[[str], None]
) -> Curve:
    from drumline.lab.evaluate.curve.job_rows import job_rows
    from drumline.lab.evaluate.curve.measure import measure
    from drumline.lab.evaluate.curve.recorded_job import read_batches, without_samples
    from drumline.lab.evaluate.verdict_rows import verdict_rows
    from drumline.streams.offline import verdicts

    show(f"reading {folder.name}{', light' if light else ''}")
    batches = read_batches(folder, light)
    window = recommended_window(phases, config.window_steps)
    recorded = replace(config, window_steps=window)
    evaluated = list(verdict_rows(verdicts(batches, recorded)))
    by_timings = list(verdict_rows(verdicts(without_samples(batches), recorded)))
    rows = job_rows(batch for _, batch in batches)
    return measure(_name(folder.resolve()), rows, evaluated, by_timings, phases, window, config, plan, show)


def _name(folder: Path) -> str:
    """Return the name of a recording; of one that lies in a folder of its tier, the name of the folder above."""
    return folder.parent.name if folder.name in ("cupti", "light") else folder.name
