"""Renders a panel as Grafana's JSON: its query, and how its values, columns and links are shown."""

from __future__ import annotations

from typing import Any

from drumline.infra.grafana.model import PLUGIN, PLUGIN_VERSION, Field, Json, Link, Panel, PanelQuery
from drumline.infra.grafana.render.options import custom, options

SOURCE = {"type": PLUGIN, "uid": "${datasource}"}
FORMATS = {"timeseries": 0, "table": 1}
#: Points that a panel of lines or a heatmap asks for, however wide the screen is.
POINTS = 500
#: Verdict levels (streams/core/thresholds.py): text and colour.
LEVELS = {
    -1: ("not enough data", "text"),
    0: ("ok", "green"),
    1: ("suspect", "blue"),
    2: ("warning", "orange"),
    3: ("critical", "red"),
}
LEVEL_MAPPING = {
    "type": "value",
    "options": {str(k): {"text": t, "color": c, "index": i} for i, (k, (t, c)) in enumerate(LEVELS.items())},
}
#: In tables the text for "no data" would also fill every cell that is empty or null.
EMPTY_CELLS = {"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": "-"}]}


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
    if panel.kind in ("stat", "bargauge", "table", "heatmap", "state-timeline"):
        defaults["color"] = {"mode": "thresholds"}
    if panel.minimum is not None and panel.kind in ("timeseries", "bargauge"):
        defaults["min"] = panel.minimum
    if panel.maximum is not None:
        defaults["max"] = panel.maximum
    if panel.decimals is not None:
        defaults["decimals"] = panel.decimals
    if panel.levels:
        defaults["mappings"] = [LEVEL_MAPPING]
    if panel.link is not None:
        defaults["links"] = [{"title": panel.link.title, "url": _link_url(panel.link), "targetBlank": False}]
    base = "green" if panel.kind in ("stat", "bargauge", "timeseries") else "text"
    defaults["thresholds"] = _thresholds(panel.thresholds, base)
    defaults["custom"] = custom(panel)
    overrides = [_override(name, shown) for name, shown in panel.fields.items()]
    if panel.kind == "table":
        overrides.insert(0, EMPTY_CELLS)
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


def _override(name: str, shown: Field) -> Json:
    values: list[tuple[str, Any]] = []
    if shown.unit:
        values.append(("unit", shown.unit))
    if shown.decimals is not None:
        values.append(("decimals", shown.decimals))
    if shown.width:
        values.append(("custom.width", shown.width))
    if shown.hidden:
        values.append(("custom.hideFrom.viz", True))
    if shown.link is not None:
        values.append(("links", [{"title": shown.link.title, "url": _link_url(shown.link), "targetBlank": False}]))
    if shown.levels:
        values.append(("mappings", [LEVEL_MAPPING]))
        values.append(("custom.cellOptions", {"type": "color-text"}))
    if shown.thresholds:
        values.append(("thresholds", _thresholds(shown.thresholds, "text")))
        values.append(("custom.cellOptions", {"type": "color-text"}))
    if shown.gauge:
        values.append(("custom.cellOptions", {"type": "gauge", "mode": "basic"}))
        values.append(("min", 0))
        values.append(("max", 1))
    if shown.inspect:
        values.append(("custom.inspect", True))
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in values],
    }


def _link_url(link: Link) -> str:
    """Return a relative URL, which holds under any root URL. `keeps`: variables that the target keeps as chosen."""
    time = f"from={link.time[0]}&to={link.time[1]}" if link.time else "${__url_time_range}"
    parts = [time, "${datasource:queryparam}"]
    parts += [f"${{{name}:queryparam}}" for name in link.keeps if name not in link.sets]
    parts += [f"var-{name}={value}" for name, value in link.sets.items()]
    return f"/d/{link.to}?" + "&".join(parts)
