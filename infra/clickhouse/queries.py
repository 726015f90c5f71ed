"""Named queries: the SQL files in `sql/` with question, parameters and theme, for `drumline sql` and the cookbook.

A file begins with comments: the question; `theme: ...`; `try: ...`, arguments of the cookbook's example; `chart: ...`,
how the web page draws the answer; notes; and `@name = default: meaning` for each parameter that is not common, or has
another meaning. A parameter is {name:Type} in the SQL: the server binds it, so no value can become SQL.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from drumline.infra.runtime.nearest import did_you_mean

FOLDER = resources.files("drumline.infra.clickhouse") / "sql"
#: Parameters with the same meaning in all queries: name -> (default, None = required; meaning).
COMMON: dict[str, tuple[str | None, str]] = {
    "job": (None, "the job"),
    "run": ("", "one run of the job"),
    "since": ("1970-01-01 00:00:00", "from when on"),
    "until": ("2106-01-01 00:00:00", "until when"),
    "limit": ("20", "rows at most"),
}
_PLACE = re.compile(r"\{(\w+):((?:[^{}'()]|\([^()]*\))+)\}")
_PARAMETER = re.compile(r"^@(\w+)(?: = (.*?))?: (.*)$")
_CHART = re.compile(r"(stacked )?(\w+(?:, \w+)*?)(?: over (\w+))?(?: by (\w+(?:, \w+)*))?")


class UnknownQuery(ValueError):
    """No query has that name; the message has similar names."""


class BadParameters(ValueError):
    """Parameters are missing or unknown; the message lists those of the query."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a query; `default` None = required."""

    name: str
    type: str
    default: str | None
    about: str

    @property
    def option(self) -> str:
        """Return the option of `drumline sql`: `--other-run`."""
        return option(self.name)


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns of an answer that are drawn: a bar for each row, or lines over the column `over`.

    Written as `gpu_s by kernel`, `stacked a, b by rank`, or `gb_per_s over minute by direction`. `labels` name a bar,
    or a line. `is_stacked`: the measures of a row are parts of one bar.
    """

    measures: tuple[str, ...]
    over: str
    labels: tuple[str, ...]
    is_stacked: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that it needs."""
        return (*self.measures, *filter(None, [self.over]), *self.labels)


@dataclass(frozen=True, slots=True)
class Query:
    """A named query. `example`: parameters of the cookbook's example; `sql` has no comments, `notes` are of them.

    `chart`: how its answer is drawn; None = it is not.
    """

    name: str
    question: str
    theme: str
    notes: str
    example: Mapping[str, str]
    parameters: tuple[Parameter, ...]
    sql: str
    chart: Chart | None = None

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return all parameters, with defaults. Raises BadParameters."""
        known = {parameter.name: parameter for parameter in self.parameters}
        options = ", ".join(p.option if p.default is None else f"[{p.option}]" for p in self.parameters)
        usage = f"it has: {options} ([]: may be left out)" if options else "it has none"
        if unknown := sorted(given.keys() - known.keys()):
            close = difflib.get_close_matches(unknown[0], known, n=1)
            hints = " ".join(filter(None, (did_you_mean([option(name) for name in close]), usage)))
            raise BadParameters(f"{self.name} has no parameter {option(unknown[0])}; {hints}")
        if missing := [p.name for p in self.parameters if p.default is None and p.name not in given]:
            raise BadParameters(f"{self.name} needs {' and '.join(map(option, missing))}; {usage}")
        for name, text in given.items():
            if wanted := _wrong_number(known[name].type, text):
                example = known[name].default or "1"
                raise BadParameters(
                    f"{self.name}: {option(name)} {text!r} is {wanted}; for example: {option(name)} {example}"
                )
        return {p.name: given.get(p.name, p.default or "") for p in self.parameters}

    def described(self) -> dict[str, Any]:
        """Return name, question, theme and parameters, as JSON for programs; `default` null = required."""
        parameters = [{"name": p.name, "type": p.type, "default": p.default, "about": p.about} for p in self.parameters]
        return {"name": self.name, "question": self.question, "theme": self.theme, "parameters": parameters}


def _wrong_number(kind: str, text: str) -> str:
    """Return why a text is no value of a ClickHouse type of numbers, "" where it is, or the type is another."""
    if kind.startswith(("UInt", "Int")) and not re.fullmatch(r"-?\d+", text):
        return "no whole number"
    if kind.startswith("UInt") and text.startswith("-"):
        return "below 0"
    if kind.startswith("Float") and not re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?|-?inf", text):
        return "no number"
    return ""


def parse(name: str, text: str) -> Query:
    """Parse a file. Raises ValueError without a question, a theme, or the meaning of a parameter."""
    lines = text.splitlines()
    head = [line.removeprefix("--").strip() for line in lines[: _body(lines)]]
    sql = "\n".join(lines[_body(lines) :]).strip()
    declared, notes, fields = dict[str, tuple[str | None, str]](), list[str](), dict[str, str]()
    for line in head[1:]:
        if parameter := _PARAMETER.match(line):
            declared[parameter[1]] = (parameter[2], parameter[3])
        elif line.startswith(("theme: ", "try: ", "chart: ")):
            key, value = line.split(": ", 1)
            fields[key] = value
        else:
            notes.append(line)
    types = dict[str, str]()
    for place, kind in _PLACE.findall(_quoted(sql)):
        types.setdefault(place, kind.replace('"', "'"))
    about = COMMON | declared
    wrong = sorted((types.keys() - about.keys()) | (declared.keys() - types.keys()))
    if not head or not fields.get("theme") or wrong:
        named = f" (wrong: {', '.join(wrong)})" if wrong else ""
        raise ValueError(f"{name}.sql needs a question, a theme and its parameters as @name{named}")
    parameters = tuple(
        Parameter(place, types[place], *about[place]) for place in dict.fromkeys((*declared, *COMMON)) if place in types
    )
    arguments = shlex.split(fields.get("try", ""))
    example = {flag.removeprefix("--"): value for flag, value in zip(arguments[::2], arguments[1::2], strict=True)}
    return Query(name, head[0], fields["theme"], " ".join(notes), example, parameters, sql, _chart(name, fields))


def _chart(name: str, fields: Mapping[str, str]) -> Chart | None:
    text = fields.get("chart")
    if text is None:
        return None
    parts = _CHART.fullmatch(text)
    if parts is None or not (parts[3] or parts[4]):
        raise ValueError(f"{name}.sql: chart: {text!r} is not like: gpu_s by kernel, or gb_per_s over minute by rank")
    return Chart(tuple(parts[2].split(", ")), parts[3] or "", tuple((parts[4] or "").split(", ")) if parts[4] else (),
                 bool(parts[1]))  # fmt: skip


def option(name: str) -> str:
    """Return the option of a parameter, as people type it; `_` instead of `-` is the same."""
    return f"--{name.replace('_', '-')}"


def takes_newest_run(query: Query) -> bool:
    """Return whether the query is about one job: people mean its newest run, or compare that with the one before."""
    defaults = {parameter.name: parameter.default for parameter in query.parameters}
    return "run" in defaults and defaults.get("job", "") is None


def compares_runs(query: Query) -> bool:
    """Return whether the query compares two runs."""
    return any(parameter.name == "other_run" for parameter in query.parameters)


def adhoc(sql: str) -> Query:
    """Return a query of ad-hoc SQL: all its parameters are required."""
    places = dict(_PLACE.findall(_quoted(sql)))
    return Query(
        "the query", "", "", "", {}, tuple(Parameter(n, k.replace('"', "'"), None, "") for n, k in places.items()), sql
    )


def _body(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))


def _quoted(sql: str) -> str:
    """Replace quotes of time zones in types, which would hide a placeholder from its pattern."""
    return re.sub(r"(\{\w+:[^{}]*)'(\w+)'", r'\1"\2"', sql)


@cache
def queries() -> dict[str, Query]:
    """Return all queries by name, ordered by theme. Raises ValueError."""
    parsed = [
        parse(path.name.removesuffix(".sql"), path.read_text())
        for path in FOLDER.iterdir()
        if path.name.endswith(".sql")
    ]
    return {query.name: query for query in sorted(parsed, key=lambda query: (THEMES.index(query.theme), query.name))}


#: In the cookbook's order.
THEMES = (
    "Jobs and ranks", "Kernels", "Launches", "Steps", "Stragglers", "Collectives", "Copies", "Devices",
    "Comparing runs", "Serving", "Cost", "Data quality",
)  # fmt: skip


def query(name: str) -> Query:
    """Return the query of that name. Raises UnknownQuery."""
    if name in queries():
        return queries()[name]
    close = difflib.get_close_matches(name, queries(), n=3, cutoff=0.5) or [n for n in queries() if name in n]
    hint = did_you_mean(close) or "`drumline sql --list` names all"
    raise UnknownQuery(f"no query is called {name}; {hint}")
