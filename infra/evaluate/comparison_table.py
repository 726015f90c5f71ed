"""The comparison as a table: a row per phase, a column per method."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE
from rich.table import Table

from drumline.infra.evaluate.compare import Judged
from drumline.infra.evaluate.scoring import Phase


def table(judged: Sequence[Judged], title: str) -> Table:
    """Cells: the ranks a method named. Methods are letters, so that the table fits into 80 columns; see `legend`."""
    out = Table(title=title, title_justify="left", caption_justify="left", padding=(0, 1, 0, 0), box=SIMPLE)
    for name in ("phase", "is", *letters(judged)):
        out.add_column(name, overflow="fold")
    for index, phase in enumerate(judged[0].report.phases):
        name = phase.phase if phase.counted else f"({phase.phase})"
        injected = " ".join(map(str, phase.expected_ranks)) or ("job" if phase.is_fault else "-")
        out.add_row(name, injected, *(cell(each.report.phases[index]) for each in judged))
    out.add_section()
    out.add_row("recall", "", *(_number(each.report.recall) for each in judged))
    out.add_row("false alarms", "", *(str(each.report.false_alarms) for each in judged))
    out.add_row("innocent ranks", "", *(str(each.victims) for each in judged))
    out.add_row("cause right", "", *(_number(each.report.cause_accuracy) for each in judged))
    return out


def letters(judged: Sequence[Judged]) -> list[str]:
    """A, B, C, ..., one a method."""
    return [chr(ord("A") + index) for index in range(len(judged))]


def legend(judged: Sequence[Judged]) -> str:
    """What letters and marks mean."""
    lines = [
        f"{letter} {each.method}: {each.source}" + (f"; without {each.lacks}" if each.lacks else "")
        for letter, each in zip(letters(judged), judged, strict=True)
    ]
    return "\n".join(
        [
            "is: ranks that were injected. A cell: ranks that the method named, - nobody, job the job as a whole.",
            "*: not exactly the injected ranks (an innocent one named, or one missing). (phase): not counted.",
            *lines,
        ]
    )


def cell(phase: Phase) -> str:
    """The ranks found in a phase."""
    if not phase.judged:
        return "no data" if phase.windows else "too short"
    found = " ".join(map(str, phase.found_ranks)) or ("job" if phase.found_cause else "-")
    right = set(phase.found_ranks) == set(phase.expected_ranks) and phase.is_fault == (phase.found_cause is not None)
    return found if right else f"{found} *"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"
