"""Renders a panel as Grafana's JSON: its query, and how its values, columns and links are shown."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from drumline.infra.grafana.model import PLUGIN, PLUGIN_VERSION, Field, Json, Link, Panel, PanelQuery
from drumline.infra.grafana.render.columns import MS_WIDTH, filling, header, visible, widths
from drumline.infra.grafana.render.options import custom, options
from drumline.infra.grafana.thresholds import LEVEL_HUNG

SOURCE = {"type": PLUGIN, "uid": "${datasource}"}
FORMATS = {"timeseries": 0, "table": 1}
#: Points that a panel of lines or a heatmap asks for, however wide the screen is.
POINTS = 500
#: Verdict levels (streams/core/thresholds.py), and what outranks them: text and colour.
LEVELS = {
    -1: ("too little data", "#808080"),
    0: ("ok", "green"),
    1: ("suspect", "blue"),
    2: ("warning", "orange"),
    3: ("critical", "red"),
    LEVEL_HUNG: ("hung", "dark-red"),
}
LEVEL_MAPPING = {
    "type": "value",
    "options": {str(k): {"text": t, "color": c, "index": i} for i, (k, (t, c)) in enumerate(LEVELS.items())},
}
#: In tables the text for "no data" would also fill every cell that is empty or null.
EMPTY_CELLS = {"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": "-"}]}
#: Formats of times in tables. Without one Grafana shows ms where all rows are of one minute, and cuts them.
TIME, TIME_MS = "time:YYYY-MM-DD HH:mm:ss", "time:YYYY-MM-DD HH:mm:ss.SSS"
#: Name of the lines of `bands.worst`, and those that are of one rank, GPU or job: bands have no link.
BANDED = "{series}"
ONE_OF_ALL = {"id": "byRegexp", "options": "/^(?!.* of all)/"}


def panel_json(panel: Panel, number: int, place: Json) -> Json:
    """Return the panel. `number`: its id in the dashboard; `place`: its gridPos."""
    panel_model: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
    }
    if panel.query is None:
        return {**panel_model, "fieldConfig": {"defaults": {}, "overrides": []}, "options": dict(panel.options)}
    defaults: Json = {"unit": panel.unit, "noValue": panel.empty, "color": {"mode": "palette-classic"}}
    if panel.kind in ("stat", "bargauge", "table", "heatmap", "state-timeline") or panel.marks:
        defaults["color"] = {"mode": "thresholds"}
    if panel.shades:
        defaults["color"] = {"mode": "shades", "fixedColor": panel.shades}
    if panel.series:
        defaults["displayName"] = re.sub(r"\{(\w+)\}", r"${__field.labels.\1}", panel.series)
    if panel.minimum is not None and panel.kind in ("timeseries", "bargauge"):
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.levels:
        defaults["mappings"] = [LEVEL_MAPPING]
    links = [_link(panel.link)] if panel.link is not None else []
    if links and panel.series != BANDED:
        defaults["links"] = links
    defaults["thresholds"] = _thresholds(panel.thresholds, panel.base)
    defaults["custom"] = custom(panel)
    overrides = _overrides(panel)
    if links and panel.series == BANDED:
        overrides.append({"matcher": ONE_OF_ALL, "properties": [{"id": "links", "value": links}]})
    panel_model |= {
        "datasource": SOURCE,
        "targets": [_target(panel.query)],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {**options(panel), **panel.options},
    }
    if panel.min_interval:
        panel_model["interval"] = panel.min_interval
    if panel.kind in ("timeseries", "heatmap"):
        panel_model["maxDataPoints"] = POINTS
    if panel.transformations:
        panel_model["transformations"] = [dict(t) for t in panel.transformations]
    return panel_model


def _target(query: PanelQuery) -> Json:
    return {
        "refId": query.ref,
        "datasource": SOURCE,
        "editorType": "sql",
        "format": FORMATS[query.format],
        "queryType": query.format,
        "pluginVersion": PLUGIN_VERSION,
        "rawSql": query.sql,
    }


def _thresholds(steps: tuple[tuple[float, str], ...], base: str) -> Json:
    return {
        "mode": "absolute",
        "steps": [{"color": base, "value": None}, *({"color": colour, "value": at} for at, colour in steps)],
    }


def _overrides(panel: Panel) -> list[Json]:
    """Return how columns and series are shown: each has a name for people, and columns of tables a width."""
    if panel.kind == "table":
        fits, fills = widths(panel), filling(panel)
        shown = {
            name: _properties(name, _timed(field, fits[name]) if kind == "t" else field, fits[name], name == fills)
            for name, kind, field in visible(panel)
        }
        hidden = [("custom.hideFrom.viz", True)]
        names = [name for name, _ in (panel.query.declared if panel.query else [])]
        return [EMPTY_CELLS, *(_override(name, shown.get(name, hidden)) for name in names)]
    values = panel.query.named("n") if panel.query and panel.kind == "timeseries" and not panel.series else []
    fields = {**{name: Field() for name in values}, **panel.fields}
    return [_override(name, _properties(name, field)) for name, field in fields.items()]


def _timed(shown: Field, width: int) -> Field:
    """Return how a column of times is shown: with ms only where it is wide enough."""
    return replace(shown, unit=TIME_MS if width >= MS_WIDTH else TIME)


def _properties(name: str, shown: Field, width: int = 0, fills: bool = False) -> list[tuple[str, Any]]:
    cell: Json = {"wrapText": True} if shown.wraps else {}
    values: list[tuple[str, Any]] = [("displayName", header(name, shown))]
    if shown.unit:
        values.append(("unit", shown.unit))
    if shown.decimals is not None:
        values.append(("decimals", shown.decimals))
    if width:
        values.append(("custom.minWidth" if fills else "custom.width", width))
    if shown.link is not None:
        values.append(("links", [_link(shown.link)]))
    if shown.page:
        url = "${web_page:raw}" + shown.page
        values.append(("links", [{"title": "What it means, how to check it", "url": url, "targetBlank": True}]))
    if shown.levels or shown.texts:
        values.append(("custom.align", "left"))
        texts = {str(value): {"text": text, "index": i} for i, (value, text) in enumerate(shown.texts.items())}
        values.append(("mappings", [LEVEL_MAPPING if shown.levels else {"type": "value", "options": texts}]))
    if shown.thresholds:
        values.append(("thresholds", _thresholds(shown.thresholds, "text")))
    if shown.levels or shown.thresholds:
        cell = {"type": "color-text", **cell}
    if shown.gauge:
        values += [("min", 0), ("max", 1)]
        cell = {"type": "gauge", "mode": "basic"}
    if shown.wraps:
        values.append(("custom.wrapText", True))  # Grafana before 12.2: in cellOptions
    if cell:
        values.append(("custom.cellOptions", {"type": "auto", **cell}))
    if shown.inspect:
        values.append(("custom.inspect", True))
    return values


def _override(name: str, properties: list[tuple[str, Any]]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def _link(link: Link) -> Json:
    return {"title": link.title, "url": _link_url(link), "targetBlank": False}


def _link_url(link: Link) -> str:
    """Return a relative URL, which holds under any root URL. `keeps`: variables that the target keeps as chosen."""
    time = f"from={link.time[0]}&to={link.time[1]}" if link.time else "${__url_time_range}"
    parts = [time, "${datasource:queryparam}"]
    parts += [f"${{{name}:queryparam}}" for name in link.keeps if name not in link.sets]
    parts += [f"var-{name}={value}" for name, value in link.sets.items()]
    return f"/d/{link.to}?" + "&".join(parts)
