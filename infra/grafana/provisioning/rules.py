"""Alert rules in the formats of Grafana's files and of its HTTP interface.

The two name the same fields differently, and drop unknown ones silently.
"""

from __future__ import annotations

from drumline.infra.config.servers import WEB_PAGE
from drumline.infra.grafana.alerts.device import DEVICES, LOST_GPUS
from drumline.infra.grafana.alerts.inference import INFERENCE
from drumline.infra.grafana.alerts.job import JOBS, LINKS
from drumline.infra.grafana.alerts.pipeline import ARRIVAL, PIPELINE
from drumline.infra.grafana.alerts.rule import CONDITION, Group, Rule, link, with_job
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import FOLDER_UID, PLUGIN, SOURCE_UID, Json
from drumline.infra.grafana.render.dashboard import panel_ids

GROUPS: tuple[Group, ...] = (JOBS, LINKS, INFERENCE, LOST_GPUS, DEVICES, ARRIVAL, PIPELINE)


def rules() -> list[Rule]:
    """Return the rules of all groups."""
    return [rule for group in GROUPS for rule in group.rules]


def escalation(rule: Rule) -> str:
    """Return who helps the person paged: the rule's own text, which may depend on the cause, else its group's."""
    return rule.escalate or next(group.escalate for group in GROUPS if rule in group.rules)


def duration(seconds: int) -> str:
    """Format as Grafana and Prometheus do: 90s, 5m."""
    return f"{seconds // 60}m" if seconds and seconds % 60 == 0 else f"{seconds}s"


def _data(rule: Rule) -> list[Json]:
    span = {"from": rule.range_s, "to": rule.until_s}
    source = {"type": PLUGIN, "uid": SOURCE_UID}
    data: list[Json] = []
    for values in rule.values:
        model = {
            "refId": values.ref,
            "datasource": source,
            "editorType": "sql",
            "format": 1,
            "queryType": "table",
            "intervalMs": 60_000,
            "maxDataPoints": 43_200,
            "rawSql": values.sql,
        }
        data.append({"refId": values.ref, "datasourceUid": SOURCE_UID, "relativeTimeRange": span, "model": model})
    compare = {"evaluator": {"type": rule.compare, "params": list(rule.limit)}}
    expression = {"type": "__expr__", "uid": "__expr__"}
    model = {
        "refId": CONDITION,
        "type": "threshold",
        "expression": rule.values[0].ref,
        "datasource": expression,
        "conditions": [compare],
    }
    data.append(
        {"refId": CONDITION, "datasourceUid": "__expr__", "relativeTimeRange": {"from": 0, "to": 0}, "model": model}
    )
    return data


def _annotations(rule: Rule, web_page: str) -> Json:
    return {
        "summary": rule.summary,
        "description": rule.description,
        "check": with_job(rule.check),
        "act": with_job(rule.act),
        "escalate": escalation(rule),
        "runbook_url": web_page + (rule.guide or f"/alert/{rule.uid}"),
        **({"page": web_page + _page_path(rule)} if "job" in rule.selects else {}),
        "dashboard": link(rule, _panel_id(rule)),
        "limit": rule.reason,
        **({"level": rule.level} if rule.level else {}),
    }


def _page_path(rule: Rule) -> str:
    """Return the path of the alert's job, or rank, on the web page."""
    rank = '{{ if ne $labels.rank "all" }}/rank/{{ $labels.rank }}{{ end }}' if rule.opens_rank else ""
    return "/job/{{ $labels.job | urlquery }}" + rank


def _labels(rule: Rule) -> Json:
    """Return the labels of the rule itself; those of its values are added, and may not have the same names."""
    return {"team": "drumline"} if rule.level else {"severity": rule.severity, "team": "drumline"}


def _panel_id(rule: Rule) -> int:
    """Return the id of the panel that the rule shows. Raises KeyError if it is missing."""
    dashboards = {dashboard.uid: dashboard for dashboard in DASHBOARDS}
    return panel_ids(dashboards[rule.shows[0]])[rule.shows[1]]


def rule_for_file(rule: Rule, web_page: str) -> Json:
    """Return a rule as files have it. `web_page`: address of the web page, for links."""
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": CONDITION,
        "dashboardUid": rule.shows[0],
        "panelId": _panel_id(rule),
        "for": duration(rule.for_s),
        "keepFiringFor": duration(rule.keep_s),
        "missing_series_evals_to_resolve": rule.missing,
        "noDataState": rule.no_data,
        "execErrState": "Error",
        "isPaused": False,
        "labels": _labels(rule),
        "annotations": _annotations(rule, web_page),
        "data": _data(rule),
    }


def group_for_http(group: Group, web_page: str = WEB_PAGE) -> Json:
    """Return the body of PUT /api/v1/provisioning/folder/UID/rule-groups/NAME."""
    return {
        "title": group.name,
        "folderUid": FOLDER_UID,
        "interval": group.interval_s,
        "rules": [
            {
                "uid": rule.uid,
                "title": rule.title,
                "orgID": 1,
                "folderUID": FOLDER_UID,
                "ruleGroup": group.name,
                "condition": CONDITION,
                "for": duration(rule.for_s),
                "keep_firing_for": duration(rule.keep_s),
                "missingSeriesEvalsToResolve": rule.missing,
                "noDataState": rule.no_data,
                "execErrState": "Error",
                "isPaused": False,
                "labels": _labels(rule),
                "annotations": {
                    **_annotations(rule, web_page),
                    "__dashboardUid__": rule.shows[0],
                    "__panelId__": str(_panel_id(rule)),
                },
                "data": _data(rule),
            }
            for rule in group.rules
        ],
    }
