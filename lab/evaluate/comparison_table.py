"""The comparison as a table: a row per phase, a column per method."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from drumline.lab.evaluate.compare import MethodResult
from drumline.lab.evaluate.scoring import Phase


def table(results: Sequence[MethodResult], title: str) -> Table:
    """Return the table of named ranks. Columns are letters, so that it fits into 80 columns; see `legend`."""
    out = Table(title=title, title_justify="left", caption_justify="left", padding=(0, 1, 0, 0), box=SIMPLE)
    for name in ("phase", "is", *column_names(results)):
        out.add_column(name, overflow="fold")
    for index, phase in enumerate(results[0].report.phases):
        name = phase.phase if phase.counted else f"({phase.phase})"
        injected = " ".join(map(str, phase.expected_ranks)) or ("job" if phase.is_fault else "-")
        out.add_row(name, injected, *(cell(result.report.phases[index]) for result in results))
    out.add_section()
    out.add_row("recall", "", *(_number(result.report.recall) for result in results))
    out.add_row("false alarms", "", *(str(result.report.false_alarms) for result in results))
    out.add_row("innocent ranks", "", *(str(result.victims) for result in results))
    out.add_row("cause right", "", *(_number(result.report.cause_accuracy) for result in results))
    return out


def column_names(results: Sequence[MethodResult]) -> list[str]:
    """Return A, B, C, ..., one a method."""
    return [chr(ord("A") + index) for index in range(len(results))]


def legend(results: Sequence[MethodResult]) -> str:
    """Explain columns and marks."""
    lines = [
        f"{column} {result.method}: {result.source}" + (f"; without {result.lacks}" if result.lacks else "")
        for column, result in zip(column_names(results), results, strict=True)
    ]
    return "\n".join(
        [
            "is: ranks that were injected. A cell: ranks that the method named; -: none; job: the job as a whole.",
            "*: not exactly the injected ranks (an innocent one named, or one missing). (phase): not counted.",
            *lines,
        ]
    )


def cell(phase: Phase) -> str:
    """Return the ranks named in a phase."""
    if not phase.is_evaluated:
        return "no data" if phase.windows else "too short"
    named = " ".join(map(str, phase.found_ranks)) or ("job" if phase.found_cause else "-")
    right = set(phase.found_ranks) == set(phase.expected_ranks) and phase.is_fault == (phase.found_cause is not None)
    return named if right else f"{named} *"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
