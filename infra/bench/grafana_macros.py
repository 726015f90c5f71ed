"""Expands statements as Grafana and its ClickHouse plugin do before ClickHouse gets them, for benchmarks and tests.

It follows the description of plugin 4.20.0 (its documentation and pkg/macros), as far as drumline's statements use it.
Order: in the browser `$__conditionalAll`, then variables; in the plugin the macros. Alert rules skip the browser. What
remains is an error, so that no statement passes that ClickHouse would reject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: A variable's values: text for a single one, a list for a multi one. ALL_VALUES: all of them are chosen.
Value = str | list[str]
ALL_VALUES = "$__all"


class UnknownMacro(ValueError):
    """A macro or variable remains that is not replaced."""


@dataclass(frozen=True, slots=True)
class PanelRequest:
    """Holds a panel's time range and variables. Times in ms since the epoch; `interval_ms`: width of one point."""

    from_ms: int
    to_ms: int
    interval_ms: int = 60_000
    variables: Mapping[str, Value] = field(default_factory=dict)
    options: Mapping[str, list[str]] = field(default_factory=dict)


def expand(text: str, at: PanelRequest) -> str:
    """Expand the statement of a dashboard. Raises UnknownMacro."""
    return expand_alert(_variables(_conditional_all(text, at), at), at)


def expand_alert(text: str, at: PanelRequest) -> str:
    """Expand the statement of an alert rule: only the plugin's macros. Raises UnknownMacro."""
    seconds = max(at.interval_ms // 1000, 1)
    first, last = at.from_ms // 1000, at.to_ms // 1000
    first_ms, last_ms = f"fromUnixTimestamp64Milli({at.from_ms})", f"fromUnixTimestamp64Milli({at.to_ms})"
    macros = [
        (r"\$__timeFilter_ms\(([^()]*)\)", rf"\1 >= {first_ms} AND \1 <= {last_ms}"),
        (r"\$__timeFilter\(([^()]*)\)", rf"\1 >= toDateTime({first}) AND \1 <= toDateTime({last})"),
        (
            r"\$__timeInterval_ms\(([^()]*)\)",
            rf"toStartOfInterval(toDateTime64(\1, 3), INTERVAL {max(at.interval_ms, 1)} millisecond)",
        ),
        (r"\$__timeInterval\(([^()]*)\)", rf"toStartOfInterval(toDateTime(\1), INTERVAL {seconds} second)"),
        (r"\$__fromTime_ms\b", first_ms),
        (r"\$__toTime_ms\b", last_ms),
        (r"\$__fromTime\b", f"toDateTime({first})"),
        (r"\$__toTime\b", f"toDateTime({last})"),
        (r"\$__interval_s\b", str(seconds)),
        (r"\$__interval_ms\b", str(at.interval_ms)),
    ]
    for pattern, replacement in macros:
        text = re.sub(pattern, replacement, text)
    if left := re.search(r"\$\{?\w+", text):
        raise UnknownMacro(f"{left[0]} is left in: {text}")
    return text


def _conditional_all(text: str, at: PanelRequest) -> str:
    """Replace `$__conditionalAll(condition, $name)`: 1=1 where all or no values are chosen, else the condition."""
    while (start := text.find("$__conditionalAll(")) >= 0:
        begin = at_ = start + len("$__conditionalAll(")
        depth = 1
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at_], 0)
            at_ += 1
        condition, _, name = text[begin : at_ - 1].rpartition(",")
        chosen = at.variables.get(name.strip().lstrip("$"))
        is_all = chosen in (None, "", ALL_VALUES, [], [ALL_VALUES])
        text = text[:start] + ("1=1" if is_all else condition.strip()) + text[at_:]
    return text


def _variables(text: str, at: PanelRequest) -> str:
    def chosen(match: re.Match[str]) -> str:
        if match[1] not in at.variables:
            raise UnknownMacro(f"variable {match[1]} is not declared")
        value = at.variables[match[1]]
        if value in (ALL_VALUES, [ALL_VALUES]):
            value = list(at.options.get(match[1], []))
        return ",".join("'" + v.replace("\\", "\\\\").replace("'", "\\'") + "'" for v in _list(value))

    return re.sub(r"\$\{(\w+):singlequote\}", chosen, text)


def _list(value: Value) -> list[str]:
    return [value] if isinstance(value, str) else value
