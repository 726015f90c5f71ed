"""Dashboards as Grafana's JSON, schema version 42 (the classic model, which Grafana 12 and 13 read and migrate)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drumline.infra.grafana.model import PLUGIN, Annotation, Dashboard, Json, Panel, Variable, sql
from drumline.infra.grafana.render.panel import FORMATS, SOURCE, panel_json


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
            panels.append(panel_json(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": y}))
            x += panel.width
        y += max(panel.height for panel in row)
    return panels


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
