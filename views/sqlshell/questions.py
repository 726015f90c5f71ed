"""Texts about the named questions of `drumline sql`: the help of one, and the list of all."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby

from drumline.infra.clickhouse.queries import Parameter, Query, compares_runs, option, takes_newest_run
from drumline.infra.runtime.times import TIME_FORMS


def is_time(parameter: Parameter) -> bool:
    """Return whether the parameter is a time, which people may write in several forms."""
    return parameter.type.startswith("DateTime")


def question_help(query: Query, width: int) -> str:
    """Return the help of one question: parameters with type, default and meaning, and an example."""
    rows = [(p.option, "time" if is_time(p) else p.type, _default(query, p), p.about) for p in query.parameters]
    if takes_newest_run(query):
        about = "compare with all its other runs" if compares_runs(query) else "all runs of the job, in place of --run"
        rows.append(("--all-runs", "", "", about))
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    lines = [*textwrap.wrap(f"{query.name}: {query.question}", width), ""]
    for *cells, about in rows:
        head = "  " + "  ".join(cell.ljust(size) for cell, size in zip(cells, widths, strict=True)) + "  "
        lines += textwrap.wrap(
            about, max(width, len(head) + 20), initial_indent=head, subsequent_indent=" " * len(head)
        )
    if any(is_time(p) for p in query.parameters):
        lines += ["", *textwrap.wrap(f"A time is {TIME_FORMS}.", width)]
    if query.notes:
        lines += ["", *textwrap.wrap(query.notes, width)]
    return "\n".join([*lines, "", "example:", f"  {example(query)}", f"SQL: drumline sql {query.name} --print"])


def example(query: Query) -> str:
    """Return the command of a question's example."""
    return " ".join(["drumline sql", query.name, *(f"{option(name)} {value}" for name, value in query.example.items())])


def question_list(queries: Iterable[Query], width: int) -> str:
    """Return all questions by theme, each with its parameters: `--name TYPE`, `=DEFAULT`; `*` is required."""
    lines = []
    for theme, group in groupby(queries, lambda query: query.theme):
        lines.append(theme)
        for query in group:
            lines += textwrap.wrap(
                f"{query.name}: {query.question}", width, initial_indent="  ", subsequent_indent="      "
            )
            indent = " " * 6
            # Types hold commas and spaces: a parameter is not broken.
            parameters = [_usage(p).replace(" ", "\0") for p in query.parameters]
            wrapped = textwrap.wrap(
                " ".join(parameters), width, initial_indent=indent, subsequent_indent=indent,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
            lines += [line.replace("\0", " ") for line in wrapped]
        lines.append("")
    return "\n".join([*lines, "* required. `drumline sql QUESTION --help` explains its parameters, with an example."])


def _usage(parameter: Parameter) -> str:
    kind = "TIME" if is_time(parameter) else parameter.type
    if parameter.default is None:
        return f"{parameter.option}* {kind}"
    return f"{parameter.option} {kind}" + (
        f"={parameter.default}" if parameter.default and not is_time(parameter) else ""
    )


def _default(query: Query, parameter: Parameter) -> str:
    if parameter.default is None:
        return "required"
    if parameter.name == "run" and takes_newest_run(query):
        return "newest"
    if parameter.name == "other_run":
        return "the one before"
    return "all" if is_time(parameter) or not parameter.default else f"default {parameter.default}"
