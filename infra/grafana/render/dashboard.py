"""Renders dashboards as Grafana's JSON, schema version 42 (the classic model, which Grafana 12 and 13 read and
migrate).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from drumline.infra.config.servers import WEB_PAGE
from drumline.infra.grafana.model import PLUGIN, Annotation, Dashboard, Json, Panel, Variable
from drumline.infra.grafana.render.panel import FORMATS, SOURCE, panel_json


def dashboard_json(dashboard: Dashboard, web_page: str = WEB_PAGE) -> Json:
    """Return the bare model, as file provisioning needs it. `web_page`: address of `drumline serve`, for links."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["drumline", dashboard.level],
        "schemaVersion": 42,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": dashboard.refresh,
        "time": {"from": dashboard.start, "to": dashboard.end},
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
        "templating": {"list": [_source_variable(), _web_page(web_page), *(_variable(v) for v in dashboard.variables)]},
        "annotations": {"list": [_built_in(), *(_annotation(a) for a in dashboard.annotations)]},
        "panels": _placed(dashboard),
    }


def text(value: Json) -> str:
    """Return JSON, the same bytes for the same values."""
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def panel_ids(dashboard: Dashboard) -> dict[str, int]:
    """Return panel key -> id, for alert rules."""
    return {panel.key: number for number, panel in _numbered(dashboard) if isinstance(panel, Panel) and panel.key}


def _numbered(dashboard: Dashboard) -> list[tuple[int, Panel | str]]:
    flat = [item for row in dashboard.rows for item in ((row,) if isinstance(row, str) else row)]
    return list(enumerate(flat, start=1))


def _placed(dashboard: Dashboard) -> list[Json]:
    numbers = iter(_numbered(dashboard))
    panels: list[Json] = []
    y = 0
    for row in dashboard.rows:
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


def _web_page(address: str) -> Json:
    current = {"text": address, "value": address}
    return {
        "name": "web_page",
        "label": "Web page",
        "description": "address of drumline serve",
        "type": "constant",
        "query": address,
        "hide": 2,
        "current": current,
    }


def _variable(variable: Variable) -> Json:
    shared = {"name": variable.name, "label": variable.label, "description": variable.description, "hide": 0}
    if not variable.query:
        current = {"text": variable.default, "value": variable.default}
        return {
            **shared,
            "type": "textbox",
            "query": variable.default,
            "current": current,
            "options": [{**current, "selected": True}],
        }
    all_values: Json = {"text": ["All"], "value": ["$__all"]} if variable.multi else {"text": "All", "value": "$__all"}
    return {
        **shared,
        "type": "query",
        "datasource": SOURCE,
        "query": {"refId": variable.name, "queryType": "sql", "editorType": "sql", "rawSql": variable.sql},
        "refresh": 2,
        "sort": 7,
        "multi": variable.multi,
        "includeAll": variable.has_all,
        "current": all_values if variable.has_all else {"text": "", "value": ""},
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


def _annotation(annotation: Annotation) -> Json:
    target: Mapping[str, Any] = {
        "refId": "A",
        "editorType": "sql",
        "format": FORMATS["table"],
        "queryType": "table",
        "rawSql": annotation.query.sql,
    }
    return {
        "name": annotation.name,
        "enable": True,
        "hide": False,
        "iconColor": annotation.colour,
        "datasource": SOURCE,
        "target": dict(target),
    }
