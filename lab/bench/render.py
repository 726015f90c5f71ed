"""Renders a report on the terminal and as a page of docs/results/bench."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from drumline.lab.bench.result import BenchReport, Result

#: First line of a page, by which a benchmark knows that it may replace the file.
MARK = "<!-- Written by drumline bench. -->"
HEAD = ("metric", "drumline", "baseline", "ratio", "target", "met")


def number(value: float) -> str:
    """Format with three digits at least: 12,345,678; 123; 1.23; 0.0123."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def cells(result: Result) -> list[str]:
    """Return one row of the table of results, in the order of HEAD."""
    target = "" if result.target is None else f"{'<=' if result.at_most else '>='} {number(result.target)}"
    return [
        result.name,
        result.text or f"{number(result.value)} {result.unit}",
        "" if result.baseline is None else number(result.baseline),
        "" if result.ratio is None else f"{number(result.ratio)}x",
        target,
        {None: "", True: "yes", False: "no"}[result.met],
    ]


def show(report: BenchReport, console: Console) -> None:
    """Print the report as a table with notes."""
    table = Table(title=f"{report.name}: {report.data}", title_justify="left", box=None)
    for name in HEAD:
        table.add_column(name, justify="left" if name == HEAD[0] else "right", no_wrap=name != HEAD[0])
    for result in report.results:
        table.add_row(*cells(result))
    console.print(table)
    console.print(f"baseline: {report.baseline}", style="dim", markup=False)
    for note in report.notes:
        console.print(note, style="dim", markup=False, highlight=False)
    console.print(where(report), style="dim", markup=False, highlight=False)


def where(report: BenchReport) -> str:
    """Return the machine and versions of the run, as a sentence."""
    return f"Machine and versions: {'; '.join(f'{name} {value}' for name, value in report.machine.items())}."


def page(report: BenchReport, command: str, title: str) -> str:
    """Return the report as a Markdown page."""
    lines = [MARK, f"# {title}", "", f"`{command}`", "", f"Data: {report.data}.", ""]
    lines += [f"Baseline, in the same run: {report.baseline}.", "", *_table(HEAD, map(cells, report.results))]
    lines += ["", *(f"- {note}" for note in report.notes)] if report.notes else []
    return "\n".join([*lines, "", *_table(("machine and versions", ""), report.machine.items()), ""])


def write(report: BenchReport, command: str, path: Path) -> None:
    """Replace the page `path` by this report; its title is the name of the file. Raises OSError."""
    path.write_text(page(report, command, path.stem))


def is_replaceable(path: Path) -> bool:
    """Return whether `path` is empty or a page that a benchmark wrote. Raises OSError and UnicodeDecodeError."""
    text = path.read_text()
    return not text or text.startswith(MARK)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]
