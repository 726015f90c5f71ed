"""A report on the terminal, and as a section of docs/performance.md."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from drumline.infra.bench.result import Figure, Report

START, END = "<!-- bench {} -->", "<!-- end {} -->"
HEAD = ("figure", "drumline", "baseline", "times", "bar", "met")


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
        table.add_column(name, justify="left" if name == "figure" else "right", no_wrap=name != "figure")
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


def section(report: Report, command: str) -> str:
    """Markdown between two marks, so that the next run replaces it."""
    lines = [
        START.format(report.name), f"## {report.name}", "", f"`{command}`", "",
        f"Data: {report.data}. Baseline, in the same run: {report.baseline}.", "",
        "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|",
    ]  # fmt: skip
    lines += ["| " + " | ".join(cells(figure)) + " |" for figure in report.figures]
    lines += ["", *(f"- {note}" for note in report.notes)] if report.notes else []
    return "\n".join([*lines, "", where(report), END.format(report.name)])


def write(report: Report, command: str, path: Path) -> None:
    """Put the section into `path`: in place of that benchmark's earlier one, else at the end. Other text stays."""
    text = path.read_text() if path.exists() else "# Performance\n"
    made, start, end = section(report, command), START.format(report.name), END.format(report.name)
    if start in text and end in text:
        before, rest = text.split(start, 1)
        text = before + made + rest.split(end, 1)[1]
    else:
        text = f"{text.rstrip()}\n\n{made}\n"
    path.write_text(text)
