"""Charts of the named questions' answers: a bar for each row, or lines over time or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite

from drumline.infra.clickhouse.queries import Chart
from drumline.views.report.charts import NUMBERS, SLIM, WIDTH, Spec, field, middle
from drumline.views.report.data import Row

#: Bars of a chart: more rows are lines over their number, where one names each, else the first rows are drawn.
MOST_ROWS = 24
#: Lines, or parts of a bar, that colours can distinguish.
SERIES = 8
#: Smallest number that is a time, ms since the epoch: 2001. Numbers of steps stay below.
FIRST_TIME_MS = 1e12
DAY_MS = 86_400_000
#: Points that are marked on lines, so that one alone is seen.
MOST_POINTS = 200
#: Pixels of a row of bars, and of each of several measures in it.
ROW, MEASURE_ROW = 22, 13
#: Pixels beside the plot of bars, pixels of the plot, and characters of a name: on a wide and on a slim chart.
WIDE_PARTS, SLIM_PARTS = (300, 400, 38), (160, 165, 22)


@dataclass(frozen=True, slots=True)
class AnswerChart:
    """A chart of an answer. `rows`: of the answer that it shows. `over`: column of its x axis; "" = it has bars."""

    spec: Spec
    rows: int
    over: str


def answer_chart(
    chart: Chart, names: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH
) -> AnswerChart | None:
    """Return the chart of an answer; None where no row has a number of it.

    `names`: of the answer's columns. `rows`: cells as text, in the answer's order. `width`: WIDTH, or SLIM for a phone.
    """
    table = [dict(zip(names, row, strict=True)) for row in rows]
    over = chart.over or (chart.labels[0] if len(rows) > MOST_ROWS and len(chart.labels) == 1 else "")
    points = _points(chart, table, over) if over else []
    if points and points[0]["at"] < points[-1]["at"]:  # one place makes no line
        return AnswerChart(_lines(points, over, width), len(rows), over)
    shown = table[:MOST_ROWS]
    if chart.over or not (values := _row_values(chart, shown, width)):
        return None
    return AnswerChart(_chart_of_rows(chart, values, width), len(shown), "")


def _points(chart: Chart, table: list[dict[str, str]], over: str) -> list[Row]:
    """Return `at`, `series` and `value` of each row and measure, in the order of `at`; [] where a row has no place."""
    labels = chart.labels if over == chart.over else ()
    points = []
    for row in table:
        if (at := _number(row[over])) is None and (at := _milliseconds(row[over])) is None:
            return []
        named = ", ".join(row[label] for label in labels)
        for measure in chart.measures:
            if (value := _number(row[measure])) is not None:
                series = (named if len(chart.measures) == 1 else f"{named} {measure}".strip()) or measure
                points.append({"at": at, "series": series, "value": value})
    shown = list(dict.fromkeys(point["series"] for point in points))[:SERIES]
    return sorted((point for point in points if point["series"] in shown), key=lambda point: point["at"])


def _lines(points: list[Row], over: str, width: int) -> Spec:
    names = list(dict.fromkeys(point["series"] for point in points))
    begin, end = points[0]["at"], points[-1]["at"]
    is_time = begin >= FIRST_TIME_MS
    form = "%H:%M:%S" if end - begin < DAY_MS else "%m-%d %H:%M"
    x = field("at", "temporal" if is_time else "quantitative", over,
              axis={"grid": False, "tickCount": 3 if width == SLIM else 8, **({"format": form} if is_time else {})},
              scale={"type": "utc" if is_time else "linear", "domain": [begin, end], "nice": False})  # fmt: skip
    colour = field("series", "nominal", None, scale={"domain": names, "range": _colours(names)},
                   legend={"symbolType": "stroke", **_legend(width)} if len(names) > 1 else None)  # fmt: skip
    y = field(
        "value",
        "quantitative",
        names[0] if len(names) == 1 else None,
        axis={"tickCount": 5, **NUMBERS},
        scale={"nice": 5},
    )
    mark = {"type": "line", "strokeWidth": 1.5, "point": {"size": 20} if len(points) <= MOST_POINTS else False}
    return {"height": 200, "width": width, "data": {"values": points}, "mark": mark,
            "encoding": {"x": x, "y": y, "color": colour}}  # fmt: skip


def _row_values(chart: Chart, table: list[dict[str, str]], width: int) -> list[Row]:
    """Return `row`, `measure` and `value` of each bar; a name that is there again has the number of its row."""
    *_, most = SLIM_PARTS if width == SLIM else WIDE_PARTS
    values, known = list[Row](), set[str]()
    for place, row in enumerate(table, 1):
        name = middle(", ".join(filter(None, (row[label] for label in chart.labels))), most) or "–"
        name = f"{place}. {name}" if name in known else name
        known.add(name)
        for measure in chart.measures:
            if (value := _number(row[measure])) is not None:
                values.append({"row": name, "measure": measure, "value": value})
    return values


def _chart_of_rows(chart: Chart, values: list[Row], width: int) -> Spec:
    beside, plot, _ = SLIM_PARTS if width == SLIM else WIDE_PARTS
    rows = list(dict.fromkeys(value["row"] for value in values))
    several, is_beside = len(chart.measures) > 1, len(chart.measures) > 1 and not chart.is_stacked
    y = field("row", "nominal", None, sort=None,
              axis={"ticks": False, "domain": False, "labelLimit": beside, "minExtent": beside})  # fmt: skip
    x = field("value", "quantitative", None if several else chart.measures[0], axis={"tickCount": 4},
              scale={"nice": 4}, stack="zero" if chart.is_stacked else None)  # fmt: skip
    colour = field("measure", "nominal", None, sort=None, legend=_legend(width) if several else None,
                   scale={"domain": list(chart.measures), "range": _colours(chart.measures)})  # fmt: skip
    offset = {"yOffset": field("measure", "nominal", None, sort=None)} if is_beside else {}
    height = (MEASURE_ROW * len(chart.measures) + 6 if is_beside else ROW) * len(rows)
    return {"height": height, "width": plot, "data": {"values": values}, "mark": {"type": "bar"},
            "encoding": {"x": x, "y": y, "color": colour, **offset}}  # fmt: skip


def _legend(width: int) -> Spec:
    """Return the legend: names may be wider in the reader's font than in the one they are measured with."""
    return {"columns": 1 if width == SLIM else 4, "columnPadding": 28}


def _colours(names: Sequence[str]) -> list[str]:
    return [f"var(--series-{place})" for place in range(1, len(names) + 1)]


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _milliseconds(cell: str) -> float | None:
    """Return the ms since the epoch of a time as ClickHouse writes it, UTC."""
    try:
        return datetime.fromisoformat(cell[:26]).replace(tzinfo=UTC).timestamp() * 1e3
    except ValueError:
        return None
