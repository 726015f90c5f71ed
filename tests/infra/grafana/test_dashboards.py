"""Dashboards, rules and provisioning as files: the fields and values that Grafana reads.

No Grafana runs in these tests.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as sdk

from drumline.infra.config.settings import StreamSettings
from drumline.infra.grafana import thresholds as limits
from drumline.infra.grafana.alerts.rule import CONDITION
from drumline.infra.grafana.catalog import DASHBOARDS, dashboard_files
from drumline.infra.grafana.provisioning.contacts import RECEIVER
from drumline.infra.grafana.provisioning.files import provisioning_files
from drumline.infra.grafana.provisioning.rules import GROUPS, group_for_http, rules
from drumline.infra.grafana.render.dashboard import dashboard_json, panel_ids
from drumline.lab.bench.grafana_macros import PanelRequest, expand_alert
from drumline.sinks.tables.tables import SEVERITIES
from drumline.streams.core.thresholds import CRITICAL, INSUFFICIENT, WARNING, StragglerConfig
from drumline.streams.stragglers.alarm import STATES

BOARDS = {dashboard.uid: dashboard_json(dashboard) for dashboard in DASHBOARDS}
#: Ids of Grafana's value formats (getValueFormats of @grafana/data) that we use, and its form of a unit of ours.
UNITS = {
    "none", "short", "percent", "percentunit", "ns", "ms", "s", "bytes", "Bps", "ops", "rowsps", "watt", "celsius",
    "hertz", "suffix:GPUs", "time:YYYY-MM-DD HH:mm:ss", "time:YYYY-MM-DD HH:mm:ss.SSS",
}  # fmt: skip
#: Rules that compare with the job's own past, or count rows of a kind: their panels show another amount.
RATIOS = {"drumline-job-stalled", "drumline-collective-bandwidth", "drumline-job-quarantine"}
register_default_plugins()  # the models of panels' own options, too
each_board = pytest.mark.parametrize("board", BOARDS.values(), ids=list(BOARDS))


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board):
    return [(panel, target) for panel in panels(board) for target in panel.get("targets", [])]


def variables(board):
    return [v["name"] for v in board["templating"]["list"]]


def lost(before, after, at=""):
    """Paths of what is in `before` and not the same in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [p for k, v in before.items() for p in (lost(v, after[k], f"{at}.{k}") if k in after else [f"{at}.{k}"])]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [p for i, (a, b) in enumerate(zip(before, after, strict=True)) for p in lost(a, b, f"{at}[{i}]")]
    return [] if before == after else [at]


@each_board
def test_grafanas_own_model_keeps_every_key(board):
    kept = json.loads(json.dumps(sdk.Dashboard.from_json(board), cls=JSONEncoder))
    wrong = [
        path for path in lost(board, kept) if not re.search(r"^\.annotations\.list\[\d+\]\.(target|builtIn)", path)
    ]
    assert wrong == []


def test_a_misspelt_key_would_be_found():
    board = json.loads(json.dumps(next(iter(BOARDS.values()))))
    board["panels"][0]["fieldConfig"]["defaults"]["noVal"] = "x"
    assert lost(board, json.loads(json.dumps(sdk.Dashboard.from_json(board), cls=JSONEncoder)))


def test_dashboards_have_names_of_their_own():
    for name in ("uid", "title"):
        assert len({board[name] for board in BOARDS.values()}) == len(BOARDS)
    assert all(
        board["schemaVersion"] == 42 and not board["editable"] and board["description"] for board in BOARDS.values()
    )


@each_board
def test_panels_are_described_have_units_and_an_empty_state_and_do_not_overlap(board):
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])
    for panel in panels(board):
        assert panel["title"]
        assert panel["description"].endswith(".")
        if panel.get("targets"):
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
            assert panel["fieldConfig"]["defaults"]["noValue"]
        everywhere = {"matcher": {"id": "byRegexp", "options": "/.*/"}, "properties": [{"id": "noValue", "value": "-"}]}
        assert (everywhere in panel["fieldConfig"]["overrides"]) == (panel["type"] == "table"), "cells may be empty"
        for override in panel["fieldConfig"]["overrides"]:
            assert override["properties"], f"{panel['title']}: an override of nothing"
            assert all(p["value"] in UNITS for p in override["properties"] if p["id"] == "unit")


@each_board
def test_overrides_name_columns_that_there_are(board):
    dashboard = next(m for m in DASHBOARDS if m.uid == board["uid"])
    for panel in dashboard.panels:
        if panel.query:
            assert set(panel.fields) <= {name for name, _ in panel.query.declared}, panel.title


@each_board
def test_statements_are_as_the_plugin_wants_them(board):
    annotations = [a["target"]["rawSql"] for a in board["annotations"]["list"] if "target" in a]
    queries = [v["query"]["rawSql"] for v in board["templating"]["list"] if v["type"] == "query"]
    for panel, target in targets(board):
        assert target["format"] in (0, 1)
        assert target["editorType"] == "sql"
        assert target["datasource"]["uid"] == "${datasource}"
        if target["format"] == 0:
            assert re.search(r"ORDER BY time", target["rawSql"]), panel["title"]
        assert re.search(r"\$__(time|from|to)", target["rawSql"]), f"{panel['title']}: no time filter"
    for text in [*annotations, *queries, *(target["rawSql"] for _, target in targets(board))]:
        used = set(re.findall(r"\$\{(\w+)", text)) | set(re.findall(r"\$(?!__)(\w+)", text))
        assert used <= set(variables(board))
        bare = set(re.findall(r"\$(?!__|\{)(\w+)", re.sub(r", \$\w+\)", ")", text)))
        assert not bare, f"not escaped: {bare}"
        for variable in re.findall(r".?\$\{\w+[^}]*\}.?", text):
            assert re.fullmatch(r"'\$\{\w+:percentencode\}'", variable), "the one format that no value leaves"


@each_board
def test_links_lead_to_dashboards_that_know_the_variables(board):
    urls = re.findall(r'"url": "(/d/[^"]+)"', json.dumps(board))
    for url in urls:
        uid = re.match(r"/d/([\w-]+)", url)[1]
        assert uid in BOARDS
        assert "${__url_time_range}" in url or ("from=" in url and "to=" in url), "time is kept"
        assert set(re.findall(r"var-(\w+)=", url)) <= set(variables(BOARDS[uid]))
        assert set(re.findall(r"\$\{(\w+):queryparam\}", url)) <= set(variables(board)) & set(variables(BOARDS[uid]))


@each_board
def test_links_carry_encoded_names_that_the_panel_selects(board):
    dashboard = next(m for m in DASHBOARDS if m.uid == board["uid"])
    for panel in dashboard.panels:
        columns = dict(panel.query.declared) if panel.query else {}
        for link in [panel.link, *(shown.link for shown in panel.fields.values())]:
            for name in re.findall(r"\$\{__data\.fields\.(\w+)\}", str(link and (link.sets, link.time))):
                assert columns[name] == "n" or f"encodeURLComponent({name.removesuffix('_key')}) AS {name}" in (
                    panel.query.sql
                ), f"{panel.title}: {name}"


def test_a_cause_leads_to_its_page_at_the_address_that_is_set():
    files = {path.name: text for path, text in dashboard_files("https://gpus.example").items()}
    board = json.loads(files["drumline-fleet.json"])
    assert {"text": "https://gpus.example", "value": "https://gpus.example"} in [
        v["current"] for v in board["templating"]["list"] if v["type"] == "constant"
    ]
    assert "${web_page:raw}/cause/${__data.fields.cause_key}" in files["drumline-fleet.json"]


@each_board
def test_variables_are_chained_in_order_and_renewed_with_the_time(board):
    known = set()
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["refresh"] == 2
            assert set(re.findall(r"\$\{(\w+)", variable["query"]["rawSql"])) <= known
            assert "LIMIT" in variable["query"]["rawSql"]
        known.add(variable["name"])


def test_limits_of_verdicts_are_the_stream_processors():
    config = StragglerConfig()
    assert (config.suspect, config.warning, config.critical) == (limits.SUSPECT, limits.WARNING, limits.CRITICAL)
    assert (limits.LEVEL_WARNING, limits.LEVEL_CRITICAL) == (WARNING, CRITICAL)
    assert pytest.approx(1 / config.link_ratio) == limits.BANDWIDTH_RATIO
    assert StreamSettings().hung_s == limits.HUNG_S
    assert STATES[:4] == ("ok", "suspect", "warning", "critical")
    assert {"insufficient_data": INSUFFICIENT, **{state: n for n, state in enumerate(STATES[:4])}} == SEVERITIES


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.uid)
def test_rule_can_be_evaluated_and_rendered(rule):
    for values in rule.values:
        expand_alert(values.sql, PanelRequest(0, 60_000))  # raises on what only a browser would replace
    text = rule.summary + rule.description + rule.level
    assert set(re.findall(r"\$values\.(\w+)\.", text)) <= {values.ref for values in rule.values}
    shown = re.findall(r"\$labels\.(\w+)", text + json.dumps(dict(rule.selects)))
    assert all(re.search(rf"\b{label}\b", rule.values[0].sql) for label in shown)
    opened = "drumline-rank" if rule.opens_rank else rule.shows[0]
    assert set(rule.selects) <= set(variables(BOARDS[opened]))
    assert len(rule.uid) <= 40


#: Rules on levels are shown by the share that makes a level; of counts, one is the first that is more than none; a
#: throttled minute is drawn as 1.
SHOWN_AS = {
    limits.LEVEL_WARNING - 0.5: limits.WARNING,
    limits.THROTTLED_MINUTES: 1.0,
    0.0: 1.0,
}


@pytest.mark.parametrize("rule", [rule for rule in rules() if rule.uid not in RATIOS], ids=lambda rule: rule.uid)
def test_the_panel_of_an_alert_draws_the_limit_of_the_rule(rule):
    dashboard = next(m for m in DASHBOARDS if m.uid == rule.shows[0])
    panel = next(p for p in panels(BOARDS[dashboard.uid]) if p["id"] == panel_ids(dashboard)[rule.shows[1]])
    shown = [panel["fieldConfig"]["defaults"]]
    if panel["type"] == "table":  # coloured cells
        shown = [
            {p["id"]: p["value"] for p in override["properties"]} for override in panel["fieldConfig"]["overrides"]
        ]
    else:
        drawn_as = (shown[0]["custom"]["thresholdsStyle"]["mode"], shown[0]["color"]["mode"])
        assert drawn_as in (("line", "palette-classic"), ("off", "thresholds")), "a line, or bars of its colour"
    colours = {
        step["value"]: step["color"] for defaults in shown for step in defaults.get("thresholds", {}).get("steps", ())
    }
    assert SHOWN_AS.get(rule.limit[0], rule.limit[0]) in colours
    bad = [colour for value, colour in colours.items() if value == SHOWN_AS.get(rule.limit[0], rule.limit[0])]
    assert set(bad) <= ({"green"} if rule.compare == "lt" else {"orange", "red"}), "on the bad side"


def test_files_of_rules_have_what_grafana_reads_in_files():
    groups = yaml.safe_load(provisioning_files()[Path("provisioning/alerting/rules.yaml")])["groups"]
    for group in groups:
        assert int(group["interval"].rstrip("sm")) > 0
        for rule in group["rules"]:
            refs = [part["refId"] for part in rule["data"]]
            assert len(set(refs)) == len(refs)
            assert rule["condition"] == refs[-1] == CONDITION
            assert rule["data"][-1]["model"]["expression"] in refs[:-1]
            for part in rule["data"]:
                span = part["relativeTimeRange"]
                assert isinstance(span["from"], int)
                assert span["from"] > span["to"] or part["datasourceUid"] == "__expr__"
            assert not re.search(r"\$(?!\$)", json.dumps(rule["labels"])), "Grafana expands $ in labels of files"
    assert len({r["uid"] for g in groups for r in g["rules"]}) == len(rules())


def test_a_message_leads_to_the_panel_at_the_time_of_the_alert():
    text = provisioning_files()[Path("provisioning/alerting/rules.yaml")]
    for rule in yaml.safe_load(text)["groups"][0]["rules"]:
        link = rule["annotations"]["dashboard"]
        whole, _, rank = link.partition("{{ else }}")
        assert f"{rule['dashboardUid']}?viewPanel={rule['panelId']}" in whole
        assert "&var-job=" in link
        if rank:
            assert 'd/{{ if eq $labels.rank "all" }}' in whole
            assert rank.startswith("drumline-rank?var-rank={{ $labels.rank | urlquery | urlquery }}{{ end }}&var-job=")
        assert bool(rank) == ("$labels.rank" in rule["annotations"]["summary"]), rule["title"]
        assert "| urlquery | urlquery }}" in link, "once for the variable's value, once for the URL"
        assert "from=" not in link, "an annotation does not know when its alert began"
    [template] = yaml.safe_load(provisioning_files()[Path("provisioning/alerting/templates.yaml")])["templates"]
    assert (
        "{{ .Annotations.dashboard }}&from={{ (.StartsAt.Add -3600000000000).UnixMilli }}&to=" in template["template"]
    )


def test_http_spells_rules_as_http_does():
    for group in GROUPS:
        for rule in group_for_http(group)["rules"]:
            assert {"folderUID", "ruleGroup", "keep_firing_for", "missingSeriesEvalsToResolve"} <= set(rule)
            assert not {"dashboardUid", "panelId", "keepFiringFor"} & set(rule)


def test_secrets_come_from_the_environment_and_receivers_exist():
    files = {p.name: yaml.safe_load(t) for p, t in provisioning_files(("webhook", "slack", "pagerduty")).items()}
    [point] = files["contact-points.yaml"]["contactPoints"]
    addresses = [r["settings"].get("url") or r["settings"]["integrationKey"] for r in point["receivers"]]
    assert all(re.fullmatch(r"\$DRUMLINE_ALERT_\w+", address) for address in addresses)
    assert len(addresses) == 3
    [tree] = files["policies.yaml"]["policies"]
    assert {tree["receiver"], *(r["receiver"] for r in tree["routes"])} == {point["name"]} == {RECEIVER}
    [source] = files["clickhouse.yaml"]["datasources"]
    assert source["secureJsonData"] == {"password": "$DRUMLINE_CLICKHOUSE_PASSWORD"}
