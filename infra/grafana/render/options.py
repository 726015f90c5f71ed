"""Options that all panels of a kind share."""

from __future__ import annotations

from drumline.infra.grafana.model import Json, Panel

_REDUCE: Json = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_STAT: Json = {
    "colorMode": "value",
    "graphMode": "none",
    "textMode": "auto",
    "justifyMode": "auto",
    "orientation": "auto",
    "wideLayout": True,
    "showPercentChange": False,
    "percentChangeColorMode": "standard",
}
_GAUGE: Json = {
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
_HEATMAP: Json = {
    "calculate": False,
    "cellGap": 1,
    "cellValues": {},
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


def custom(panel: Panel) -> Json:
    """Return `fieldConfig.defaults.custom`."""
    if panel.kind == "timeseries":
        return {
            "drawStyle": "bars" if panel.bars else "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.stacked or panel.bars else 0,
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if panel.thresholds and not panel.marks else "off"},
        }
    if panel.kind == "state-timeline":
        return {"fillOpacity": 80, "lineWidth": 0}
    if panel.kind == "table":
        return {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    return {}


def options(panel: Panel) -> Json:
    """Return `options`."""
    legend = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
    match panel.kind:
        case "timeseries":
            return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
        case "stat":
            return {"reduceOptions": _REDUCE, **_STAT}
        case "bargauge":
            return {"reduceOptions": {**_REDUCE, "values": True}, **_GAUGE}
        case "table":
            table: Json = {"showHeader": True, "cellHeight": "sm"}
            return table | ({"sortBy": [{"displayName": panel.sort[0], "desc": panel.sort[1]}]} if panel.sort else {})
        case "state-timeline":
            return {
                "mergeValues": True,
                "showValue": "never",
                "alignValue": "left",
                "rowHeight": 0.9,
                "perPage": 20,
                "legend": legend,
                "tooltip": {"mode": "single", "sort": "none"},
            }
        case "heatmap":
            return {**_HEATMAP, "cellValues": {"unit": panel.unit}}
        case _:
            return {}
