"""Prints the verdicts on a table of operations, for `drumline evaluate`: it has no phases to score them by."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from drumline.infra.runtime.terminal import echo, terminal_console
from drumline.lab.evaluate.scoring import SEVERITY_NAMES, WHOLE_JOB

if TYPE_CHECKING:
    from drumline.streams.core.thresholds import StragglerConfig


def print_verdicts(path: Path, config: StragglerConfig, window_steps: int | None, as_json: bool) -> None:
    """Print the verdicts of windows of `window_steps`; None = of fewer where the table is short. Raises BadTrace."""
    from drumline.lab.evaluate.operation_verdicts import evaluate_operations

    result = evaluate_operations(path, config, window_steps)
    if as_json:
        echo(json.dumps(result.as_json()))
        return
    table = Table(title=f"{path.name}, windows of {result.window_steps} steps", title_justify="left")
    for column in ("steps", "finding", "cause", "lost"):
        table.add_column(column, justify="right" if column == "lost" else "left")
    for row in result.findings:
        severity, cause = SEVERITY_NAMES.get(row.severity, ""), f"{row.cause} {row.detail}".rstrip()
        where = f"{row.first_step}-{row.last_step}"
        table.add_row(where, f"{severity}: {result.described(row.rank)}", cause, f"{row.share:.1%}")
    if result.findings:
        terminal_console(file=sys.stdout).print(table)
    for rank, share in result.unrecorded_shares().items():
        echo(f"{result.described(rank)}: waits that were not recorded are {share:.1%} of its time")
    echo(
        f"{len({row.first_step for row in result.rows})} windows, {len(result.not_evaluated)} not evaluated, "
        f"{len({row.first_step for row in result.findings if row.rank != WHOLE_JOB})} name a rank"
    )
