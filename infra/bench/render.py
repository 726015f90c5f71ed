"""A report on the terminal, and as a page of docs/results/bench."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from drumline.infra.bench.result import Figure, Report

#: First line of a page, by which a benchmark knows that it may replace the file.
MARK = "<!-- Written by drumline bench. -->"
HEAD = ("metric", "drumline", "baseline", "ratio", "target", "met")


def number(value: float) -> str:
    """Three digits at least: 12,345,678; 123; 1.23; 0.0123."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cells(figure: Figure) -> list[str]:
    bar = "" if figure.bar is None else f"{'<=' if figure.most else '>='} {number(figure.bar)}"
    return [
        figure.name,
        figure.words or f"{number(figure.value)} {figure.unit}",
        "" if figure.baseline is None else number(figure.baseline),
        "" if figure.ratio is None else f"{number(figure.ratio)}x",
        bar,
        {None: "", True: "yes", False: "no"}[figure.met],
    ]


def show(report: Report, console: Console) -> None:
    table = Table(title=f"{report.name}: {report.data}", title_justify="left", box=None)
    for name in HEAD:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", no_wrap=name != HEAD[0])
    for figure in report.figures:
        table.add_row(*cells(figure))
    console.print(table)
    console.print(f"baseline: {report.baseline}", style="dim", markup=False)
    for note in report.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    console.print(where(report), style="dim", markup=False, highlight=False)


def where(report: Report) -> str:
    """On what it was measured."""
    return f"Machine and versions: {'; '.join(f'{name} {value}' for name, value in report.machine.items())}."


def page(report: Report, command: str, title: str) -> str:
    """Return the report as a Markdown page."""
    lines = [MARK, f"# {title}", "", f"`{command}`", "", f"Data: {report.data}.", ""]
    lines += [f"Baseline, in the same run: {report.baseline}.", "", *_table(HEAD, map(cells, report.figures))]
    lines += ["", *(f"- {note}" for note in report.notes)] if report.notes else []
    return "\n".join([*lines, "", *_table(("machine and versions", ""), report.machine.items()), ""])


def write(report: Report, command: str, path: Path) -> None:
    """Replace the page `path` by this report; the page's title is the name of the file."""
    path.write_text(page(report, command, path.stem))


def is_replaceable(path: Path) -> bool:
    """Return whether `path` is empty or a page that a benchmark wrote. Raises OSError and UnicodeDecodeError."""
    text = path.read_text()
    return not text or text.startswith(MARK)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]
