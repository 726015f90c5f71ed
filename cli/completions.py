"""Completion of subcommands, options and values in a shell. It starts nothing: no engine, no request."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any


def complete(path: Sequence[str], command: Any, args: Sequence[str], incomplete: str) -> list[str]:
    """Return what may follow `args` of a typer command. `path`: its names, as in ("topics",)."""
    rest = list(args)
    while rest and rest[0] in getattr(command, "commands", {}):
        path, command = (*path, rest[0]), command.commands[rest.pop(0)]
    options = [p for p in command.params if str(p.opts[0]).startswith("-") and not getattr(p, "hidden", False)]
    last = rest[-1] if rest else ""
    taken = next((p for p in options if last in p.opts and not p.is_flag), None)
    if taken is not None:
        names = _values(path, taken)
    elif path == ("sql",) and (question := _question(rest)):
        names = question
    elif incomplete.startswith("-"):
        names = [name for p in options for name in (*p.opts, *p.secondary_opts)] + ["--help"]
    else:
        positional = [p for p in command.params if p not in options]
        names = [*getattr(command, "commands", {}), *(name for p in positional[:1] for name in _values(path, p))]
    return [name for name in names if name.startswith(incomplete)]


def _question(args: Sequence[str]) -> list[str]:
    """Return the options of the named question in `args`; none where there is no question."""
    from drumline.infra.clickhouse.queries import queries
    from drumline.views.sqlshell.request import option_names

    query = next((queries()[name] for name in args if name in queries()), None)
    if query is None:
        return []
    return [*option_names(query), "--help", "--json", "--csv", "--output", "--print"]


def _values(path: Sequence[str], parameter: Any) -> list[str]:
    """Return the values of an argument or an option, where they are known without a request."""
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(member.value) for member in kind]
    if path == ("sql",) and parameter.name == "query":
        from drumline.infra.clickhouse.queries import queries

        return list(queries())
    if parameter.name == "topic":
        from drumline.schemas.topics import TOPICS, dlq

        with_dead_letters = path[0] == "topics"
        return [
            name
            for spec in TOPICS
            for name in (spec.topic.value, *([dlq(spec.topic)] if with_dead_letters and spec.dead_letters else []))
        ]
    if path == ("completion",):
        return ["bash", "zsh", "fish"]
    if path[0] == "limits" and parameter.name == "values":
        from drumline.infra.grafana.limits import LIMITS

        return [f"{limit.name}=" for limit in LIMITS]
    return []
