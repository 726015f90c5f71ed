"""Values that describe a dashboard. The render package makes Grafana's JSON from them.

SQL is written with tokens (`@job`, `@minute`, ...: `TOKENS`), so that the same filter reads the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from drumline.schemas.topics import TOPICS

#: The ClickHouse plugin, and the uid that the provisioned data source has.
PLUGIN, PLUGIN_VERSION, SOURCE_UID = "grafana-clickhouse-datasource", "4.20.0", "clickhouse"
FOLDER, FOLDER_UID = "drumline", "drumline"

Json = dict[str, Any]
Format = Literal["timeseries", "table"]
Kind = Literal[
    "timeseries", "stat", "table", "bargauge", "state-timeline", "heatmap", "flamegraph", "text", "alertlist"
]


def encoded(sql: str) -> str:
    """Return SQL of a variable's value for a name: letters, digits, `-._~` and %XX, whatever the name holds.

    No other character reaches Grafana's own formats (which leave backslashes, commas and `$` as they are), so values
    of one variable can be told apart in a list, and macros and URLs cannot see them.
    """
    return f"encodeURLComponent({sql})"


def typed(variable: str) -> str:
    """Return SQL of a variable's value. `percentencode` is the one format whose result cannot end a literal."""
    return f"decodeURLComponent('${{{variable}:percentencode}}')"


def chosen(variable: str) -> str:
    """Return SQL of the name that a query variable has as its one value (`encoded`; in alerts' links: `urlquery`)."""
    return f"decodeURLFormComponent({typed(variable)})"


def is_chosen(column: str, variable: str, cast: str = "{}") -> str:
    """Return the condition that a column is one of a variable's values, true where All are chosen.

    Several values come as `{a,b}`. A subquery, because ClickHouse prunes by it and not by an array that a lambda makes.
    cast: SQL of a value from its text.
    """
    return f"$__conditionalAll({column} IN (SELECT {_values(variable, cast)}), ${variable})"


def _values(variable: str, cast: str = "{}") -> str:
    return cast.format(f"decodeURLFormComponent(arrayJoin(splitByChar(',', trim(BOTH '{{}}' FROM {typed(variable)}))))")


def of_process(condition: str, variable: str, rows: str = "processes_versions", cast: str = "{}") -> str:
    """Return the condition that a run has a process with one of a variable's values, true where All are chosen."""
    runs = f"SELECT job, run FROM {rows} WHERE {condition} IN (SELECT {_values(variable, cast)})"
    return f"$__conditionalAll((job, run) IN ({runs}), ${variable})"


#: Labels of `drumline run --label KEY=VALUE`: one row for each.
LABELS = """(
SELECT job, run, published, arrayJoin(arrayMap((k, v) -> concat(k, '=', v), mapKeys(labels), mapValues(labels)))
    AS pair FROM processes_versions
)"""
_LABELLED = " AND ".join(
    of_process("pair", name, LABELS, cast)
    for name, cast in (("team", "concat('team=', {})"), ("user", "concat('user=', {})"), ("label", "{}"))
)


#: token -> SQL. `$__conditionalAll(cond, $x)` is 1=1 where x is All.
#: Rollups are keyed by the start of a minute, so a range that begins inside one still needs that minute.
TOKENS: dict[str, str] = {
    "job": f"job = {chosen('job')}",
    "jobs": f"{is_chosen('job', 'job')} AND {_LABELLED}",
    "run": f"{is_chosen('run', 'run')} AND {_LABELLED}",
    "labelled": _LABELLED,
    "placed": of_process("host", "host"),
    "rank": f"rank = toInt32OrDefault({chosen('rank')}, toInt32(-1))",
    "ranks": is_chosen("rank", "rank", "toInt32OrDefault({}, toInt32(-2))"),
    "hosts": is_chosen("host", "host"),
    "start": "$__timeFilter_ms(start)",
    "window": "(window_end >= $__fromTime_ms AND window_start <= $__toTime_ms)",
    "minute": "(minute >= toStartOfMinute($__fromTime) AND minute <= $__toTime)",
    "second": "$__timeFilter(second)",
    "sample": "$__timeFilter_ms(time)",
    "published": "$__timeFilter_ms(published)",
    "span_s": "greatest(dateDiff('second', $__fromTime, $__toTime), 1)",
    "evaluated": "state != 'insufficient_data'",
    "produced": "topic NOT IN (" + ", ".join(f"'{spec.topic}'" for spec in TOPICS if spec.derived) + ")",
    "known": "severity >= 'ok'",
    "bad": "severity >= 'suspect'",
    "level": (
        "toInt8(transform(CAST(state AS String), ['ok', 'suspect', 'warning', 'critical', 'cleared'], [0,1,2,3,0], -1))"
    ),
}


def sql(text: str) -> str:
    """Return the statement with its tokens replaced, without indentation. Raises KeyError on an unknown token."""
    filled = re.sub(r"@(\w+)", lambda token: TOKENS[token[1]], text)
    return "\n".join(line.strip() for line in filled.strip().splitlines())


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """Holds one statement.

    columns: the columns of the answer, "name:kind name:kind" with kinds t(ime), s(tring), n(umber). In a timeseries
    strings become labels and numbers values, so a rank has to be a string there.
    """

    text: str
    columns: str
    format: Format = "timeseries"
    ref: str = "A"

    @property
    def sql(self) -> str:
        """Return the statement without tokens."""
        return sql(self.text)

    @property
    def declared(self) -> list[tuple[str, str]]:
        """Return (name, kind) of each column."""
        return [(name, kind) for name, _, kind in (part.partition(":") for part in self.columns.split())]

    def named(self, kind: str) -> list[str]:
        """Return the columns of a kind."""
        return [name for name, of_kind in self.declared if of_kind == kind]


@dataclass(frozen=True, slots=True)
class Link:
    """Leads to another dashboard and keeps the time range and variables.

    sets: variable -> Grafana expression.
    time: expressions of the new range in ms, instead of the present one.
    """

    title: str
    to: str
    sets: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ("job", "run")
    time: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """Describes how one column of a table, or one series, is shown.

    header: its name for people; without, that of the column without underscores (render/columns.py).
    width: of a table's column, px; the one that `fills` takes what is left, at least its width.
    page: path on the web page of `drumline serve` to which a cell leads.
    texts: shown instead of numbers, as they are; `levels`: as names of verdict levels.
    """

    unit: str = ""
    header: str = ""
    link: Link | None = None
    width: int = 0
    fills: bool = False
    wraps: bool = False
    texts: Mapping[int, str] = field(default_factory=dict)
    page: str = ""
    decimals: int | None = None
    hidden: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()
    levels: bool = False
    gauge: bool = False
    inspect: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """Describes a panel.

    thresholds: (from, colour), drawn as lines in a timeseries, or as the colour of bars (`marks`).
    base: colour below the first threshold.
    series: name of a line, made of its labels: "rank {rank}".
    levels: values are verdict levels.
    shades: colour of which all lines are shades.
    empty: shown instead of "No data".
    key: name by which alert rules find the panel.
    """

    kind: Kind
    title: str
    description: str
    query: PanelQuery | None = None
    unit: str = "short"
    width: int = 12
    height: int = 8
    min_interval: str = ""
    thresholds: tuple[tuple[float, str], ...] = ()
    base: str = "text"
    series: str = ""
    fields: Mapping[str, Field] = field(default_factory=dict)
    link: Link | None = None
    levels: bool = False
    marks: bool = False
    shades: str = ""
    stacked: bool = False
    bars: bool = False  # glossary: Grafana's drawStyle
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    empty: str = "nothing in this time range"
    sort: tuple[str, bool] | None = None
    transformations: tuple[Mapping[str, Any], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """Describes a query variable, or a text box where `query` is empty.

    The statement has the columns `value` and `text`: the name, and what Grafana shows for it.
    """

    name: str
    label: str
    query: str = ""
    multi: bool = False
    has_all: bool = False
    default: str = ""
    description: str = ""

    @property
    def sql(self) -> str:
        """Return the statement without tokens, its values encoded."""
        return sql(
            f"SELECT {encoded('named.value')} AS value, named.text AS text FROM (\n{self.query.strip()}\n) AS named"
        )


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks times on all panels; columns time, timeEnd, text, tags."""

    name: str
    colour: str
    query: PanelQuery


@dataclass(frozen=True, slots=True)
class Dashboard:
    """Describes a dashboard.

    rows: panels from left to right, 24 columns wide in all; a string starts a section of that title.
    """

    uid: str
    title: str
    description: str
    level: str
    rows: tuple[tuple[Panel, ...] | str, ...]
    variables: tuple[Variable, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    start: str = "now-1h"
    end: str = "now"
    refresh: str = "30s"

    @property
    def panels(self) -> list[Panel]:
        """Return all panels, without sections."""
        return [panel for row in self.rows if not isinstance(row, str) for panel in row]
