"""The report's charts: Vega-Lite specifications drawn to SVG by a child process, without a browser or a network.

Colours are the page's CSS variables, text and grid its `currentColor`, so that one drawing serves light and dark. Vega
escapes what it writes, and labels axes and marks for screen readers.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from functools import lru_cache
from math import ceil, floor, log10
from threading import Thread
from typing import Any

from drumline.infra.runtime.terminal import escape_controls
from drumline.views.report.data import ReportData, Row
from drumline.views.report.drawing import ChartProcess
from drumline.views.report.text import LEVELS, WHOLE_JOB, span

Spec = dict[str, Any]

WIDTH = 720
#: Width of a plot beside whose axis the screen of a phone ends; pixels.
SLIM = 290
#: Space for labels, which may be a fifth wider in the reader's font than in the one they are measured with.
NUMBERS: Spec = {"minExtent": 44}
_NAMES: Spec = {"ticks": False, "domain": False, "labelLimit": 300, "minExtent": 365}
_TEXT = {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12}
CONFIG: Spec = {
    "font": "system-ui, sans-serif",
    "background": None,
    "view": {"stroke": None},
    "axis": {**_TEXT, "titleFontWeight": "normal", "gridColor": "currentColor", "gridOpacity": 0.12,
             "domainColor": "currentColor", "tickColor": "currentColor", "labelOverlap": True},
    "legend": {**_TEXT, "titleFontWeight": "normal", "titleOrient": "left", "titleLimit": 400, "orient": "top",
               "symbolType": "square", "symbolOpacity": 1, "titlePadding": 12},
}  # fmt: skip
_process = ChartProcess()


def svg(spec: Spec) -> str:
    """Draw a chart. The text is safe to put into a page as it is. A chart that was drawn lately is not drawn again.

    Control characters are escaped: XML has none of them, and vl-convert aborts the process where a label has one.
    """
    try:
        return _drawn(_text(spec)).result()
    except BaseException:
        _drawn.cache_clear()  # the next one who asks is to get a chart
        raise


def draw_ahead(spec: Spec) -> None:
    """Begin to draw a chart that `svg` will be called for, and return at once."""
    _drawn(_text(spec))


def start_drawing() -> None:
    """Start the process that draws: it loads its library, which takes seconds, while this one does other work."""
    _process.start()


@lru_cache(128)
def _drawn(spec: str) -> Future[str]:
    drawing = Future[str]()
    Thread(target=_draw, args=(spec, drawing), daemon=True).start()  # a process that ends does not wait for it
    return drawing


def _draw(spec: str, drawing: Future[str]) -> None:
    try:
        drawing.set_result(_process.draw(spec))
    except BaseException as error:
        drawing.set_exception(error)


def _text(spec: Spec) -> str:
    return json.dumps(_drawable({"width": WIDTH, "config": CONFIG, **spec}))


def _drawable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drawable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_drawable(item) for item in value]
    return escape_controls(value) if isinstance(value, str) else value


def field(name: str, kind: str, title: str | None, **more: Any) -> Spec:
    """Return a channel of an encoding."""
    return {"field": name, "type": kind, "title": title, **more}


def steps_axis(data: ReportData) -> Spec:
    """Return one scale for step times and lateness, so that they can be compared."""
    firsts = [int(x["first"]) for x in (data.steps, data.windows) if x.get("last") is not None]
    lasts = [int(x["last"]) for x in (data.steps, data.windows) if x.get("last") is not None]
    return {"scale": {"domain": [min(firsts), max(lasts) + 1], "nice": False}, "axis": {"format": "d", "grid": False}}


def step_times(data: ReportData, width: int = WIDTH) -> Spec:
    """Return the chart of step times: median of the ranks, and the range from shortest to longest as a band.

    Verdicts are coloured behind it.
    """
    axis = steps_axis(data)
    alarms: dict[tuple[int, int, str], list[str]] = {}
    for e in data.episodes:  # ranks late together are one band: two hundred on each other would hide the line
        name = "job" if e["rank"] == WHOLE_JOB else f"rank {e['rank']}"
        alarms.setdefault((e["first_step"], e["last_step"] + 1, e["state"]), []).append(name)
    bands = [
        {"first": first, "end": end, "state": state,
         "name": names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")}
        for (first, end, state), names in alarms.items()
    ]  # fmt: skip
    x = field("bin", "quantitative", "step", **axis)
    # Space above for the names of verdicts.
    axis_y = {"scale": {"domain": [0, 1.15 * max(row["longest_ms"] for row in data.step_times)], "nice": 5},
            "axis": {"tickCount": 5, **NUMBERS}}  # fmt: skip
    layers: list[Spec] = []
    if bands:
        span = {"x": field("first", "quantitative", "step", **axis), "x2": {"field": "end"}}
        worst = [level for level in LEVELS if any(band["state"] == level for band in bands)]
        colour = field(
            "state", "nominal", "alarm", scale={"domain": worst, "range": [f"var(--{name})" for name in worst]}
        )
        layers.append({"data": {"values": bands}, "mark": {"type": "rect", "opacity": 0.22},
                       "encoding": {**span, "color": colour}})  # fmt: skip
        if len(bands) <= (12 if width == WIDTH else 4):
            label = {"type": "text", "align": "left", "dx": 3, "dy": 9, "fill": "currentColor", "fontSize": 12}
            layers.append({"data": {"values": bands}, "mark": label,
                           "encoding": {"x": span["x"], "y": {"value": 0}, "text": {"field": "name"}}})  # fmt: skip
    shortest = field("shortest_ms", "quantitative", "step, ms", **axis_y)
    layers.append({"mark": {"type": "area", "color": "var(--series-1)", "opacity": 0.3},
                   "encoding": {"x": x, "y": shortest, "y2": {"field": "longest_ms"}}})  # fmt: skip
    layers.append({"mark": {"type": "line", "color": "var(--series-1)", "strokeWidth": 1.5},
                   "encoding": {"x": x, "y": field("median_ms", "quantitative", "step, ms", **axis_y)}})  # fmt: skip
    return {"height": 220, "width": width, "data": {"values": data.step_times}, "layer": layers}


def kernels(data: ReportData, width: int = WIDTH, most: int = 12) -> Spec:
    """Return the chart of the kernels with most GPU time; a slim one has shorter names."""
    is_slim = width == SLIM
    values = [
        {
            "kernel": f"{place}. {middle(_short(row), 20 if is_slim else 42)}",
            "gpu_s": row["gpu_s"],
            "label": span(row["gpu_s"]) + ("" if is_slim else f", {row['family'] or 'other'}"),
        }
        for place, row in enumerate(data.kernels[:most], 1)
    ]
    y = field("kernel", "nominal", None, sort=None, axis=_NAMES | ({"minExtent": 175} if is_slim else {}))
    scale = {"domain": [0, (1.6 if is_slim else 1.4) * max(row["gpu_s"] for row in values)], "nice": False}
    x = field("gpu_s", "quantitative", "GPU time, s", scale=scale, axis={"tickCount": 2 if is_slim else 5})
    drawn = {"mark": {"type": "bar", "color": "var(--series-1)"}, "encoding": {"x": x, "y": y}}
    text = {"mark": {"type": "text", "align": "left", "dx": 4, "fill": "currentColor", "fontSize": 12},
            "encoding": {"x": x, "y": y, "text": {"field": "label"}}}  # fmt: skip
    return {
        "height": 24 * len(values),
        "width": 170 if is_slim else 390,
        "data": {"values": values},
        "layer": [drawn, text],
    }


def memcpys(data: ReportData, width: int = WIDTH) -> Spec:
    """Return the bandwidth while copying, of all ranks (point) and of the slowest one (tick), on a log scale."""
    values = [
        {"copy": copy_name(row), "all": row["gb_per_s"], "slowest": row["slowest_gb_per_s"]}
        for row in data.memcpys[:10]
    ]
    y = field(
        "copy", "nominal", None, sort=None, axis={**_NAMES, "grid": True, "minExtent": 180 if width == SLIM else 215}
    )
    rates = [row[name] for row in values for name in ("all", "slowest") if row[name] > 0] or [1]
    low, high = floor(log10(min(rates))), ceil(log10(max(rates)))
    decades = [10.0**power for power in range(low, max(high, low + 1) + 1)]
    scale = {"scale": {"type": "log", "domain": [decades[0], decades[-1]]},
             "axis": {"grid": False, "values": decades, "format": "~g"}}  # fmt: skip
    x = field("all", "quantitative", "GB/s while copying", **scale)
    slowest = {**x, "field": "slowest"}
    return {
        "height": 26 * len(values), "width": 165 if width == SLIM else 540, "data": {"values": values},
        "layer": [
            {"mark": {"type": "rule", "color": "var(--series-1)", "strokeWidth": 2},
             "encoding": {"x": x, "x2": {"field": "slowest"}, "y": y}},
            {"mark": {"type": "tick", "color": "var(--series-1)", "thickness": 2, "size": 14},
             "encoding": {"x": slowest, "y": y}},
            {"mark": {"type": "point", "filled": True, "color": "var(--series-1)", "size": 90, "opacity": 1},
             "encoding": {"x": x, "y": y}},
        ],
    }  # fmt: skip


def device(data: ReportData, column: str, title: str) -> Spec | None:
    """Return one measure over time, a line per series; None if no sample has it."""
    values = [{"second": r["second"], "series": r["series"], "rank": r["rank"], "value": r[column]}
              for r in data.device_times if r[column] is not None]  # fmt: skip
    return over_time(values, data.length_s, title, zero=column == "util")


def over_time(values: list[Row], length_s: float, title: str, zero: bool = False) -> Spec | None:
    """Return lines over the time from the start; None without values.

    `values`: rows with `second`, `value`, `series`, and `rank`, which orders the series.
    """
    if not values:
        return None
    unit, seconds = next(((unit, s) for unit, s in (("h", 3600), ("min", 60)) if length_s >= 10 * s), ("s", 1))
    values = [{**row, "at": row["second"] / seconds} for row in values]
    names = list(dict.fromkeys(row["series"] for row in sorted(values, key=lambda row: row["rank"])))
    scale = {"domain": names, "range": [f"var(--series-{i + 1})" for i in range(len(names))]}
    return {
        "height": 130, "width": 300, "data": {"values": values},
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {
            "x": field("at", "quantitative", f"{unit} from the start", axis={"grid": False, "tickCount": 5},
                        scale={"domain": [0, length_s / seconds], "nice": False}),
            "y": field("value", "quantitative", title, axis={"tickCount": 4, **NUMBERS},
                        scale={"zero": zero, "nice": 4}),
            "color": field("series", "nominal", None, scale=scale, legend={"symbolType": "stroke"}),
        },
    }  # fmt: skip


def middle(name: str, most: int = 42) -> str:
    """Cut a name in the middle: kernels of one kind differ at the end."""
    return name if len(name) <= most else f"{name[: most - 17]}…{name[-16:]}"


def _short(row: Row) -> str:
    return str(row["short"] or row["name"])


def copy_name(row: Row) -> str:
    """Return `HtoD pageable to device`; unknown memory kinds are left out."""
    return " ".join((row["direction"], " to ".join(part for part in (row["source"], row["target"]) if part))).strip()
