"""Values that describe a dashboard. The render package makes Grafana's JSON from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from drumline.infra.grafana.tokens import encoded, sql

#: The ClickHouse plugin, and the uid that the provisioned data source has.
PLUGIN, PLUGIN_VERSION, SOURCE_UID = "grafana-clickhouse-datasource", "4.20.0", "clickhouse"
FOLDER, FOLDER_UID = "drumline", "drumline"

Json = dict[str, Any]
Format = Literal["timeseries", "table"]
Kind = Literal[
    "timeseries", "stat", "table", "bargauge", "state-timeline", "heatmap", "flamegraph", "text", "alertlist"
]


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
