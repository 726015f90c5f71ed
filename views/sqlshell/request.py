"""Queries as people write them: SQL or a named question, with the values of its parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from drumline.infra.clickhouse.queries import BadParameters, Query, UnknownQuery, adhoc, takes_newest_run
from drumline.infra.clickhouse.queries import query as find_query
from drumline.infra.runtime.times import BadTime, clickhouse_time, parse_time
from drumline.views.sqlshell.hints import unsupported_statement_hint
from drumline.views.sqlshell.questions import is_time

ALL_RUNS = "--all-runs"
_NAME = re.compile(r"[a-z][a-z0-9-]*")


class BadRequest(ValueError):
    """The arguments are no query, or lack something; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Request:
    """A query and what was given for its parameters. `is_named`: it is a question of the cookbook."""

    query: Query
    given: Mapping[str, str]
    is_named: bool
    all_runs: bool = False

    @property
    def wants_newest_run(self) -> bool:
        """Return whether the question is about one run, or two, and none was named."""
        named = any(self.given.get(name) for name in ("run", "other", "other_run"))
        return self.is_named and takes_newest_run(self.query) and not self.all_runs and not named

    def of_run(self, run: str, other_run: str = "") -> Request:
        """Return the same about this run, compared with another."""
        other = {"other_run": other_run} if other_run else {}
        return replace(self, given={**self.given, "run": run, **other})

    def values(self, now: datetime) -> dict[str, str]:
        """Return the values of all parameters as ClickHouse takes them. Raises BadRequest."""
        try:
            values = self.query.values(self.given)
            for parameter in self.query.parameters:
                if is_time(parameter) and (text := self.given.get(parameter.name)):
                    values[parameter.name] = _time(parameter.type, text, now)
        except BadTime as error:
            raise BadRequest(f"{parameter.option} {error}") from None
        except BadParameters as error:
            raise BadRequest(str(error)) from None
        return values


def option_names(query: Query) -> list[str]:
    """Return the options of a named question: `--name` of each parameter, and --all-runs where it is about one run."""
    return [parameter.option for parameter in query.parameters] + [ALL_RUNS] * takes_newest_run(query)


def parse_request(arguments: Sequence[str]) -> Request:
    """Return the query that command line arguments name or contain. Raises BadRequest."""
    texts, given = _options(arguments)
    if len(texts) > 1:
        raise BadRequest(_too_many(texts))
    statement = texts[0].strip().rstrip(";").strip() if texts else ""
    if not statement:
        raise BadRequest("the query is empty")
    if advice := unsupported_statement_hint(statement):
        raise BadRequest(advice)
    try:
        is_named = _NAME.fullmatch(statement) is not None or _NAME.fullmatch(statement.replace("_", "-")) is not None
        return Request(find_query(statement) if is_named else adhoc(statement), given, is_named, ALL_RUNS in arguments)
    except UnknownQuery as error:
        raise BadRequest(str(error)) from None


def _too_many(texts: Sequence[str]) -> str:
    """Return what to write instead of a question with values without names, or of a statement without quotes."""
    try:
        names = [p.option for p in find_query(texts[0]).parameters] if _NAME.fullmatch(texts[0]) else []
    except UnknownQuery as error:
        return str(error)
    if names:
        example = f"give it by the name of a parameter, such as {names[0]} {texts[1]}"
        return f"{texts[1]!r}: {example}; {texts[0]} has {', '.join(names)}"
    return f'{len(texts)} arguments are no query: put a statement into quotes: drumline sql "{" ".join(texts)}"'


def _options(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return (plain arguments, parameters): `--name value` and `--name=value` are parameters."""
    texts, given = list[str](), dict[str, str]()
    rest = iter(argument for argument in arguments if argument != ALL_RUNS)
    for text in rest:
        flag = re.match(r"--([A-Za-z][\w-]*)(?:=(.*))?$", text, re.DOTALL)
        if flag is None:
            texts.append(text)
            continue
        value = flag[2] if flag[2] is not None else next(rest, None)
        if value is None:
            raise BadRequest(f"--{flag[1]} needs a value")
        given[flag[1].replace("-", "_")] = value or ""
    return texts, given


def _time(kind: str, text: str, now: datetime) -> str:
    time = clickhouse_time(parse_time(text, now))
    return time if kind.startswith("DateTime64") else time.partition(".")[0]
