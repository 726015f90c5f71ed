"""The comparison as a table: a row per phase, a column per method."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from drumline.comparison.methods import Judged
from drumline.infra.evaluation import Phase


def table(judged: Sequence[Judged], title: str) -> Table:
    """Cells: the ranks a method named; a * marks a cell that is not exactly the injected ranks."""
    out = Table(title=title, title_justify="left", caption_justify="left")
    for name in ("phase", "injected", *(each.method for each in judged)):
        out.add_column(name)
    for index, phase in enumerate(judged[0].report.phases):
        name = phase.phase if phase.counted else f"({phase.phase})"
        injected = " ".join(map(str, phase.expected_ranks)) or ("the job" if phase.is_fault else "-")
        out.add_row(name, injected, *(cell(each.report.phases[index]) for each in judged))
    out.add_section()
    out.add_row("recall", "", *(_number(each.report.recall) for each in judged))
    out.add_row("false alarms", "", *(str(each.report.false_alarms) for each in judged))
    out.add_row("victims named", "", *(str(each.victims) for each in judged))
    out.add_row("cause right", "", *(_number(each.report.cause_accuracy) for each in judged))
    return out


def cell(phase: Phase) -> str:
    """The ranks found in a phase."""
    if not phase.windows:
        return "too short"
    found = " ".join(map(str, phase.found_ranks)) or ("the job" if phase.found_cause else "-")
    right = set(phase.found_ranks) == set(phase.expected_ranks) and phase.is_fault == (phase.found_cause is not None)
    return found if right else f"{found} *"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
