"""Dashboards that people can read: tables fit, names are words, lines are few, and nothing alarming is green."""

import re

import pytest

from drumline.infra.grafana import bands
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import Panel, PanelQuery
from drumline.infra.grafana.render.dashboard import dashboard_json

SERIES = 20
COLUMNS = 8
#: Labels with so few values that each may have a line: kernel families, directions of copies, topics, kernels that the
#: statement limits to ten.
FEW = {"of_run", "family", "direction", "topic", "kernel", "scope"}
ALARMING = re.compile(
    r"\b(lost|late|drop|dropped|dead|error|errors|silent|throttled|XIDs|lost_share|cost of lost)\b", re.I
)
MONEY = re.compile(r"cost|price|money", re.I)
#: An identifier of a column, a label set or a unit's suffix; not a text.
RAW = re.compile(r"\w_\w|[{}=]|\b(ns|ms)$")
STATUS = {
    "drumline-fleet",
    "drumline-job",
    "drumline-rank",
    "drumline-stragglers",
    "drumline-health",
    "drumline-devices",
}
BOARDS = {dashboard.uid: dashboard for dashboard in DASHBOARDS}
PAIRS = [
    (dashboard, panel, drawn)
    for dashboard in DASHBOARDS
    for panel, drawn in zip(
        dashboard.panels, [p for p in dashboard_json(dashboard)["panels"] if p["type"] != "row"], strict=True
    )
]
PANELS = [pytest.param(panel, drawn, id=f"{dashboard.uid}: {panel.title}") for dashboard, panel, drawn in PAIRS]


def of_kind(*kinds):
    return pytest.mark.parametrize(("panel", "drawn"), [param for param in PANELS if param.values[0].kind in kinds])


def overrides(drawn):
    """Properties by the name that they are for."""
    return {
        override["matcher"]["options"]: {p["id"]: p["value"] for p in override["properties"]}
        for override in drawn["fieldConfig"]["overrides"]
    }


def shown_columns(panel, drawn):
    by_name = overrides(drawn)
    return {name: by_name[name] for name, _ in panel.query.declared if not by_name[name].get("custom.hideFrom.viz")}


#: Grafana's grid on a screen of 1,440 px: width of 24 columns, gap of panels, border and scroll bar of a table; px.
SCREEN, GRID, GAP, FRAME = 1424, 24, 8, 12


def panel_width(panel):
    """The width that a panel has for columns; px."""
    return SCREEN * panel.width // GRID - GAP - FRAME


@of_kind("table")
def test_a_table_fits_into_its_panel_and_has_headers_for_people(panel, drawn):
    columns = shown_columns(panel, drawn)
    assert 0 < len(columns) <= COLUMNS
    widths = {name: column.get("custom.width") or column.get("custom.minWidth") for name, column in columns.items()}
    assert all(widths.values()), "Grafana takes 150 px where none is set"
    assert sum(widths.values()) <= panel_width(panel)
    assert sum("custom.minWidth" in column for column in columns.values()) == 1, "one takes what is left"
    headers = {name: column["displayName"].replace("${currency}", "USD") for name, column in columns.items()}
    assert not [text for text in headers.values() if RAW.search(text) or not text[0].isalnum()]
    assert len(set(headers.values())) == len(headers)
    for name, text in headers.items():
        assert len(text) * 8 + 14 <= widths[name], f"{text} is cut"
    for name in panel.query.named("t"):
        form = columns[name]["unit"].removeprefix("time:")
        assert form.startswith("YYYY-MM-DD HH:mm:ss"), "Grafana adds ms where all rows are of one minute"
        assert len(form) * 7.5 + 14 <= widths[name], "times are cut"


def drawn_names(panel, drawn):
    """The names of lines: of one for each combination of labels, or of each column of numbers."""
    default = drawn["fieldConfig"]["defaults"].get("displayName")
    return [default] if default else [overrides(drawn)[name]["displayName"] for name in panel.query.named("n")]


@of_kind("timeseries", "state-timeline", "heatmap")
def test_lines_have_names_for_people(panel, drawn):
    if panel.transformations:
        return  # named by Grafana's transformation: "stream 7"
    labels = panel.query.named("s")
    names = drawn_names(panel, drawn)
    assert len(names) == 1 or not labels, "a name of labels needs one column of numbers"
    for name in names:
        used = set(re.findall(r"\$\{__field\.labels\.(\w+)\}", name))
        assert used <= set(labels)
        assert used or not labels, "all lines would have one name"
        assert not RAW.search(re.sub(r"\$\{[^}]*\}", "X", name))


@of_kind("timeseries", "state-timeline", "heatmap")
def test_lines_are_few_however_many_ranks_there_are(panel, drawn):
    labels = set(panel.query.named("s"))
    if panel.series == "{series}":
        assert f"place <= {bands.WORST}" in panel.query.sql
        assert bands.WORST + len(bands.BANDS) <= SERIES
    else:
        assert labels <= FEW | {"stream"}, "a line for each: use bands.worst or bands.banded"


def test_a_line_a_rank_would_be_refused():
    query = PanelQuery("SELECT 1", "time:t rank:s value:n")
    with pytest.raises(AssertionError, match="bands"):
        test_lines_are_few_however_many_ranks_there_are(Panel("timeseries", "x", "y.", query, series="rank {rank}"), {})


@pytest.mark.parametrize(("panel", "drawn"), [param for param in PANELS if param.values[0].query])
def test_money_has_a_currency_and_decimals(panel, drawn):
    columns = {name: values for name, values in overrides(drawn).items() if MONEY.search(values.get("displayName", ""))}
    for values in columns.values():
        assert "${currency}" in values["displayName"]
        assert values["decimals"] == 2
    if MONEY.search(panel.title) and panel.kind == "stat":
        assert "${currency}" in panel.title
        assert drawn["fieldConfig"]["defaults"]["decimals"] == 2


def colour(steps, value):
    return [step["color"] for step in steps if step["value"] is None or step["value"] <= value][-1]


@pytest.mark.parametrize(("panel", "drawn"), [param for param in PANELS if param.values[0].query])
def test_nothing_alarming_is_green(panel, drawn):
    shown = {panel.title: drawn["fieldConfig"]["defaults"]} if panel.kind == "stat" else {}
    if panel.kind == "table":
        shown |= {values["displayName"]: values for values in overrides(drawn).values() if "displayName" in values}
    for name, values in shown.items():
        if ALARMING.search(name) and "thresholds" in values:
            assert colour(values["thresholds"]["steps"], 1.0) != "green", name
    if panel.kind == "timeseries" and panel.bars and ALARMING.search(panel.title):
        assert drawn["fieldConfig"]["defaults"]["color"] != {"mode": "palette-classic"}, "its first colour is green"
    if panel.kind == "stat" and not panel.thresholds:
        assert colour(drawn["fieldConfig"]["defaults"]["thresholds"]["steps"], 1.0) == "text", "green means checked"
    if panel.kind == "stat" and ALARMING.search(panel.title):
        assert panel.thresholds, "an alarming number without limits"


@of_kind("timeseries")
def test_no_red_line_lies_on_the_axis_of_healthy_values(panel, drawn):
    defaults = drawn["fieldConfig"]["defaults"]
    steps = [step for step in defaults["thresholds"]["steps"] if step["color"] == "red" and step["value"] is not None]
    if defaults["custom"]["thresholdsStyle"]["mode"] == "off":
        return
    for step in steps:
        counts = panel.unit in ("short", "none", "ops")
        assert step["value"] > (0 if not counts else 10), "a line at 1 lies on an axis of 0 to 100"


@pytest.mark.parametrize("uid", sorted(STATUS))
def test_the_first_row_is_a_status(uid):
    first = BOARDS[uid].rows[0]
    assert all(panel.kind == "stat" for panel in first)
    assert sum(panel.width for panel in first) == 24


def test_alerts_are_near_the_top_of_the_fleet():
    place = next(drawn["gridPos"] for _, panel, drawn in PAIRS if panel.kind == "alertlist")
    assert place["y"] + place["h"] <= 14


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.uid)
def test_times_are_those_of_the_browser(dashboard):
    assert dashboard_json(dashboard)["timezone"] == "browser"
