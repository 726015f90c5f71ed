"""Expands statements as Grafana and its ClickHouse plugin do before ClickHouse gets them, for benchmarks and tests.

It follows the descriptions of plugin 4.20.0 (its documentation and pkg/macros) and of Grafana's formats of variables,
as far as drumline's statements use them: what those leave unescaped stays unescaped here. Order: in the browser
`$__conditionalAll`, then variables; in the plugin the macros. Alert rules skip the browser. What remains is an error,
so that no statement passes that ClickHouse would reject.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

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
    """Replace `$__conditionalAll(condition, $name)`: 1=1 where all or no values are chosen, else the condition.

    As in the plugin, the last one first; commas of the call are those outside of inner brackets, even in literals.
    Raises UnknownMacro where it has not two arguments: the plugin would send it as it is.
    """
    while (start := text.rfind("$__conditionalAll(")) >= 0:
        begin = argument = end = start + len("$__conditionalAll(")
        arguments, depth = [], 1
        while depth and end < len(text):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if depth == 0 or (depth == 1 and text[end] == ","):
                arguments.append(text[argument:end])
                argument = end + 1
            end += 1
        if depth or len(arguments) != 2:
            raise UnknownMacro(f"$__conditionalAll without two arguments: {text[begin:end]}")
        value = at.variables.get(arguments[1].strip().lstrip("$"))
        is_all = value is not None and ",".join(_list(value)) in ("", ALL_VALUES)
        text = text[:start] + ("1=1" if is_all else arguments[0]) + text[end:]
    return text


def _single_quote(value: Value) -> str:
    # Grafana escapes quotes only: a value that ends in a backslash, or has one before a quote, leaves the literal.
    return ",".join("'" + v.replace("'", "\\'") + "'" for v in _list(value))


def _percent_encode(value: Value) -> str:
    text = value if isinstance(value, str) else "{" + ",".join(value) + "}"
    return quote(text, safe="-._~")


def _glob(value: Value) -> str:
    several = _list(value)
    return "{" + ",".join(several) + "}" if len(several) > 1 else "".join(several)


#: Grafana's formats of a variable (VariableFormatID) that are described here; without a format it takes "glob".
FORMATS: Mapping[str, Callable[[Value], str]] = {
    "singlequote": _single_quote,
    "percentencode": _percent_encode,
    "csv": lambda value: ",".join(_list(value)),
    "glob": _glob,
}


def _variables(text: str, at: PanelRequest) -> str:
    """Replace the variables, once: a value is not looked through for others."""

    def formatted(match: re.Match[str]) -> str:
        name, form = match[1] or match[2], match[3] or "glob"
        if match[0].startswith("$__"):
            return match[0]
        if name not in at.variables or form not in FORMATS:
            raise UnknownMacro(f"variable {name} or format {form} is not declared")
        value = at.variables[name]
        if value in (ALL_VALUES, [ALL_VALUES]):
            value = list(at.options.get(name, []))
        return FORMATS[form](value)

    return re.sub(r"\$(\w+)|\$\{(\w+)(?::(\w+))?\}", formatted, text)


def _list(value: Value) -> list[str]:
    return [value] if isinstance(value, str) else value
