"""Questions that have a name: the SQL files in `sql/`, their text, parameters and theme. The cookbook and
`drumline sql` take them from here.

A file begins with comments: the question; `theme: ...`; `try: ...`, arguments of the cookbook's example; notes; and
`@name = default: what it is` for each parameter of its own, and each common one that means something else there. A
parameter is where the SQL says {name:Type}: the server binds it, so no value can become SQL.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

FOLDER = resources.files("drumline.infra.clickhouse") / "sql"
#: Parameters that mean the same everywhere: name -> (default, None = must be given; what it is).
COMMON: dict[str, tuple[str | None, str]] = {
    "job": (None, "the job"),
    "run": ("", "one run of the job; empty = all of them"),
    "since": ("1970-01-01 00:00:00", "from when on; UTC"),
    "until": ("2106-01-01 00:00:00", "until when; UTC"),
    "limit": ("20", "rows at most"),
}
_PLACE = re.compile(r"\{(\w+):((?:[^{}'()]|\([^()]*\))+)\}")
_OWN = re.compile(r"^@(\w+)(?: = (.*?))?: (.*)$")


class UnknownQuery(ValueError):
    """No query has that name; the message says which have a similar one."""


class BadParameters(ValueError):
    """Parameters that are missing, or that the query does not have; the message says which there are."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`default`: None = must be given."""

    name: str
    type: str
    default: str | None
    about: str


@dataclass(frozen=True, slots=True)
class Query:
    """`example`: parameters of the cookbook's example. `sql` is without the comments, `notes` what they say besides."""

    name: str
    question: str
    theme: str
    notes: str
    example: Mapping[str, str]
    parameters: tuple[Parameter, ...]
    sql: str

    def values(self, given: Mapping[str, str]) -> dict[str, str]:
        """All parameters, defaults filled in. Raises BadParameters."""
        known = {parameter.name: parameter for parameter in self.parameters}
        usage = ", ".join(f"--{p.name} {p.type}" + ("" if p.default is None else f" (default {p.default or 'empty'})")
                          for p in self.parameters) or "none"  # fmt: skip
        if unknown := sorted(given.keys() - known.keys()):
            raise BadParameters(f"{self.name} has no parameter --{unknown[0]}; it has: {usage}")
        if missing := [p.name for p in self.parameters if p.default is None and p.name not in given]:
            raise BadParameters(
                f"{self.name} needs {' and '.join(f'--{name}' for name in missing)}; parameters: {usage}"
            )
        return {p.name: given.get(p.name, p.default or "") for p in self.parameters}


def parse(name: str, text: str) -> Query:
    """A file's text. Raises ValueError where it lacks a question, a theme, or says nothing of a parameter."""
    lines = text.splitlines()
    head = [line.removeprefix("--").strip() for line in lines[: _body(lines)]]
    sql = "\n".join(lines[_body(lines) :]).strip()
    own, notes, fields = dict[str, tuple[str | None, str]](), list[str](), dict[str, str]()
    for line in head[1:]:
        if found := _OWN.match(line):
            own[found[1]] = (found[2], found[3])
        elif line.startswith(("theme: ", "try: ")):
            key, value = line.split(": ", 1)
            fields[key] = value
        else:
            notes.append(line)
    types = dict[str, str]()
    for place, kind in _PLACE.findall(_quoted(sql)):
        types.setdefault(place, kind.replace('"', "'"))
    about = COMMON | own
    wrong = sorted((types.keys() - about.keys()) | (own.keys() - types.keys()))
    if not head or not fields.get("theme") or wrong:
        named = f" (wrong: {', '.join(wrong)})" if wrong else ""
        raise ValueError(f"{name}.sql needs a question, a theme and its own parameters as @name{named}")
    parameters = tuple(
        Parameter(place, types[place], *about[place]) for place in dict.fromkeys((*own, *COMMON)) if place in types
    )
    words = shlex.split(fields.get("try", ""))
    example = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=True)}
    return Query(name, head[0], fields["theme"], " ".join(notes), example, parameters, sql)


def adhoc(sql: str) -> Query:
    """SQL that somebody wrote just now: every parameter it names must be given."""
    places = dict(_PLACE.findall(_quoted(sql)))
    return Query(
        "the query", "", "", "", {}, tuple(Parameter(n, k.replace('"', "'"), None, "") for n, k in places.items()), sql
    )


def _body(lines: list[str]) -> int:
    return next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))


def _quoted(sql: str) -> str:
    """Time zones in types must not hide a placeholder from its pattern."""
    return re.sub(r"(\{\w+:[^{}]*)'(\w+)'", r'\1"\2"', sql)


@cache
def queries() -> dict[str, Query]:
    """All of them by name, in the order of themes as files name them. Raises ValueError."""
    found = [
        parse(path.name.removesuffix(".sql"), path.read_text())
        for path in FOLDER.iterdir()
        if path.name.endswith(".sql")
    ]
    return {query.name: query for query in sorted(found, key=lambda query: (THEMES.index(query.theme), query.name))}


#: In the cookbook's order.
THEMES = (
    "Jobs and ranks", "Kernels", "Launches", "Steps", "Stragglers", "Collectives", "Copies", "Devices",
    "Comparing runs", "Cost", "Data quality",
)  # fmt: skip


def query(name: str) -> Query:
    """Raises UnknownQuery."""
    if name in queries():
        return queries()[name]
    close = difflib.get_close_matches(name, queries(), n=3, cutoff=0.5) or [n for n in queries() if name in n]
    hint = f"did you mean {' or '.join(close)}?" if close else "`drumline sql --list` names all"
    raise UnknownQuery(f"no query is called {name}; {hint}")
