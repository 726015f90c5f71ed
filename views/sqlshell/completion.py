"""Completion in the interactive `drumline sql`: tables, columns, functions, questions and their parameters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from drumline.infra.clickhouse.queries import Query
from drumline.views.sqlshell.request import option_names

#: What a line may begin with beside SQL and questions.
COMMANDS = ("help", "\\d", "\\q")
_KEYWORDS = re.findall(
    r"\w+",
    "SELECT FROM WHERE GROUP BY ORDER HAVING LIMIT PREWHERE WITH JOIN LEFT INNER USING ON AND OR NOT IN BETWEEN LIKE "
    "ILIKE IS NULL AS DISTINCT DESC ASC UNION ALL SETTINGS FORMAT EXPLAIN DESCRIBE TABLE SHOW TABLES CASE WHEN THEN "
    "ELSE END",
)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The names that can be completed. `tables`: table -> its columns."""

    questions: Mapping[str, Query]
    tables: Mapping[str, list[str]] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)


def completions(text: str, catalogue: Catalogue) -> tuple[str, list[str]]:
    """Return the part of a name before the cursor, and what may stand in its place, best first."""
    line = text.lstrip()
    if described := re.match(r"\\d\s+(\w*)$", line):
        return described[1], _with_prefix(described[1], catalogue.tables)
    first, _, rest = line.partition(" ")
    if not rest and line == first and not text.endswith(" "):
        names = [*catalogue.questions, *COMMANDS, "SELECT", "WITH", "SHOW"]
        return first, _with_prefix(first, names)
    if question := re.match(r"help\s+(\S*)$", line):
        return question[1], _with_prefix(question[1], catalogue.questions)
    if query := catalogue.questions.get(first):
        part = "" if text.endswith(" ") else rest.split(" ")[-1]
        return part, _with_prefix(
            part, [flag for flag in option_names(query) if flag not in rest.split() or flag == part]
        )
    return _of_sql(text, catalogue)


def _of_sql(text: str, catalogue: Catalogue) -> tuple[str, list[str]]:
    match = re.search(r"(?:(\w+)\.)?(\w*)$", text)
    table, part = (match[1] or "", match[2]) if match else ("", "")
    if table in catalogue.tables:
        return part, _with_prefix(part, catalogue.tables[table])
    named = [name for name in re.findall(r"\w+", text) if name in catalogue.tables]
    columns = {column for name in named or catalogue.tables for column in catalogue.tables[name]}
    if re.search(r"\b(from|join|describe|table)\s+\w*$", text, re.IGNORECASE):
        return part, _with_prefix(part, catalogue.tables)
    if not part:
        return part, []
    return part, [
        *_with_prefix(part, sorted(columns)),
        *_with_prefix(part, catalogue.tables),
        *_with_prefix(part, _KEYWORDS),
        *_with_prefix(part, [f"{name}(" for name in catalogue.functions]),
    ]


def _with_prefix(part: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.lower().startswith(part.lower())]
