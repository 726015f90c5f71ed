"""Dashboards as Grafana's JSON, schema version 42 (the classic model, which Grafana 12 and 13 read and migrate)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drumline.infra.grafana.model import (
    PLUGIN,
    PLUGIN_VERSION,
    Annotation,
    Dashboard,
    Field,
    Link,
    Panel,
    Query,
    Variable,
    sql,
)

SOURCE = {"type": PLUGIN, "uid": "${datasource}"}
FORMATS = {"timeseries": 0, "table": 1}
#: Points that a panel of lines or a heatmap asks for, however wide the screen is.
POINTS = 500
#: Verdict levels (streams/thresholds.py): text and colour.
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
Json = dict[str, Any]


def dashboard_json(made: Dashboard) -> Json:
    """The bare model, as file provisioning wants it."""
    return {
        "uid": made.uid,
        "title": made.title,
        "description": made.description,
        "tags": ["drumline", made.level],
        "schemaVersion": 42,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "utc",
        "refresh": made.refresh,
        "time": {"from": made.start, "to": made.end},
        "links": [
            {
                "type": "dashboards",
                "title": "drumline",
                "tags": ["drumline"],
                "asDropdown": True,
                "includeVars": True,
                "keepTime": True,
                "targetBlank": False,
                "icon": "external link",
                "tooltip": "the other dashboards, with this time and selection",
            }
        ],
        "templating": {"list": [_source_variable(), *(_variable(v) for v in made.variables)]},
        "annotations": {"list": [_built_in(), *(_annotation(a) for a in made.annotations)]},
        "panels": _placed(made),
    }


def text(made: Json) -> str:
    """The same values give the same bytes."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def panel_ids(made: Dashboard) -> dict[str, int]:
    """Panel key -> id, for alert rules."""
    return {panel.key: number for number, panel in _numbered(made) if isinstance(panel, Panel) and panel.key}


def _numbered(made: Dashboard) -> list[tuple[int, Panel | str]]:
    flat = [item for row in made.rows for item in ((row,) if isinstance(row, str) else row)]
    return list(enumerate(flat, start=1))


def _placed(made: Dashboard) -> list[Json]:
    numbers = iter(_numbered(made))
    panels: list[Json] = []
    y = 0
    for row in made.rows:
        if isinstance(row, str):
            number, _ = next(numbers)
            panels.append(
                {
                    "id": number,
                    "type": "row",
                    "title": row,
                    "collapsed": False,
                    "panels": [],
                    "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                }
            )
            y += 1
            continue
        x = 0
        for panel in row:
            number, _ = next(numbers)
            panels.append(_panel(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": y}))
            x += panel.width
        y += max(panel.height for panel in row)
    return panels


def _panel(panel: Panel, number: int, place: Json) -> Json:
    made: Json = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "gridPos": place,
    }
    if panel.query is None:
        return {**made, "fieldConfig": {"defaults": {}, "overrides": []}, "options": dict(panel.options)}
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
        defaults["links"] = [{"title": panel.link.title, "url": link_url(panel.link), "targetBlank": False}]
    base = "green" if panel.kind in ("stat", "bargauge", "timeseries") else "text"
    defaults["thresholds"] = _thresholds(panel.thresholds, base)
    defaults["custom"] = _custom(panel)
    overrides = [_override(name, shown) for name, shown in panel.fields.items()]
    if panel.kind == "table":
        overrides.insert(0, EMPTY_CELLS)
    made |= {
        "datasource": SOURCE,
        "targets": [_target(panel.query)],
        "fieldConfig": {"defaults": defaults, "overrides": overrides},
        "options": {**_options(panel), **panel.options},
    }
    if panel.min_interval:
        made["interval"] = panel.min_interval
    if panel.kind in ("timeseries", "heatmap"):
        made["maxDataPoints"] = POINTS
    if panel.transformations:
        made["transformations"] = [dict(t) for t in panel.transformations]
    return made


def _target(query: Query) -> Json:
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


def _custom(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        return {
            "drawStyle": "bars" if panel.bars else "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked or panel.bars else 0,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds else "off"},
        }
    if panel.kind == "state-timeline":
        return {"fillOpacity": 80, "lineWidth": 0}
    if panel.kind == "table":
        return {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    return {}


def _options(panel: Panel) -> Json:
    legend = {"showLegend": True, "displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]}
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    match panel.kind:
        case "timeseries":
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            return {
                "reduceOptions": reduce,
                "colorMode": "value",
                "graphMode": "none",
                "textMode": "auto",
                "justifyMode": "auto",
                "orientation": "auto",
                "wideLayout": True,
                "showPercentChange": False,
                "percentChangeColorMode": "standard",
            }
        case "bargauge":
            return {
                "reduceOptions": {**reduce, "values": True},
                "displayMode": "gradient",
                "orientation": "horizontal",
                "showUnfilled": True,
                "valueMode": "color",
                "namePlacement": "auto",
                "sizing": "auto",
                "minVizWidth": 8,
                "minVizHeight": 16,
                "maxVizHeight": 300,
                "legend": {"showLegend": False, "displayMode": "list", "placement": "bottom", "calcs": []},
            }
        case "table":
            options: Json = {"showHeader": True, "cellHeight": "sm"}
            return options | ({"sortBy": [{"displayName": panel.sort[0], "desc": panel.sort[1]}]} if panel.sort else {})
        case "state-timeline":
            return {
                "mergeValues": True,
                "showValue": "never",
                "alignValue": "left",
                "rowHeight": 0.9,
                "perPage": 20,
                "legend": {**legend, "displayMode": "list", "calcs": []},
                "tooltip": {"mode": "single", "sort": "none"},
            }
        case "heatmap":
            return {
                "calculate": False,
                "cellGap": 1,
                "cellValues": {"unit": panel.unit},
                "color": {
                    "mode": "scheme",
                    "scheme": "Oranges",
                    "fill": "dark-orange",
                    "exponent": 0.5,
                    "scale": "exponential",
                    "steps": 64,
                    "reverse": False,
                },
                "exemplars": {"color": "rgba(255,0,255,0.7)"},
                "filterValues": {"le": 1e-9},
                "legend": {"show": True},
                "rowsFrame": {"layout": "auto", "value": "lateness"},
                "showValue": "never",
                "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
                "yAxis": {"axisPlacement": "left", "reverse": False},
            }
        case _:
            return {}


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
        values.append(("links", [{"title": shown.link.title, "url": link_url(shown.link), "targetBlank": False}]))
    if shown.levels:
        values.append(("mappings", [LEVEL_MAPPING]))
        values.append(("custom.cellOptions", {"type": "color-text"}))
    if shown.thresholds:
        values.append(("thresholds", _thresholds(shown.thresholds, "text")))
        values.append(("custom.cellOptions", {"type": "color-text"}))
    if shown.bar:
        values.append(("custom.cellOptions", {"type": "gauge", "mode": "basic"}))
        values.append(("min", 0))
        values.append(("max", 1))
    if shown.inspect:
        values.append(("custom.inspect", True))
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in values],
    }


def link_url(link: Link) -> str:
    """Relative, so that it holds under any root URL. `keeps`: variables handed on as they are chosen."""
    time = f"from={link.time[0]}&to={link.time[1]}" if link.time else "${__url_time_range}"
    parts = [time, "${datasource:queryparam}"]
    parts += [f"${{{name}:queryparam}}" for name in link.keeps if name not in link.sets]
    parts += [f"var-{name}={value}" for name, value in link.sets.items()]
    return f"/d/{link.to}?" + "&".join(parts)


def _source_variable() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "description": "ClickHouse with drumline's tables",
        "type": "datasource",
        "query": PLUGIN,
        "refresh": 1,
        "hide": 0,
        "multi": False,
        "includeAll": False,
        "current": {"text": "ClickHouse", "value": "clickhouse"},
    }


def _variable(made: Variable) -> Json:
    shared = {"name": made.name, "label": made.label, "description": made.description, "hide": 0}
    if not made.query:
        current = {"text": made.default, "value": made.default}
        return {
            **shared,
            "type": "textbox",
            "query": made.default,
            "current": current,
            "options": [{**current, "selected": True}],
        }
    every: Json = {"text": ["All"], "value": ["$__all"]} if made.multi else {"text": "All", "value": "$__all"}
    return {
        **shared,
        "type": "query",
        "datasource": SOURCE,
        "query": {"refId": made.name, "queryType": "sql", "editorType": "sql", "rawSql": sql(made.query)},
        "refresh": 2,
        "sort": 7,
        "multi": made.multi,
        "includeAll": made.every,
        "current": every if made.every else {"text": "", "value": ""},
    }


def _built_in() -> Json:
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def _annotation(made: Annotation) -> Json:
    target: Mapping[str, Any] = {
        "refId": "A",
        "editorType": "sql",
        "format": FORMATS["table"],
        "queryType": "table",
        "rawSql": made.query.sql,
    }
    return {
        "name": made.name,
        "enable": True,
        "hide": False,
        "iconColor": made.colour,
        "datasource": SOURCE,
        "target": dict(target),
    }
