"""Alert rules, contact points, policies, templates, data source: as the files that Grafana reads at start, and as its
HTTP interface wants them. The two spell the same things differently, and drop silently what is misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from drumline.infra.grafana.alerts import CONDITION, Group, Rule, link
from drumline.infra.grafana.catalog import DASHBOARDS, HERE
from drumline.infra.grafana.model import FOLDER, FOLDER_UID, PLUGIN, SOURCE_UID
from drumline.infra.grafana.render import panel_ids
from drumline.infra.grafana.rules_device import DEVICES
from drumline.infra.grafana.rules_job import JOBS, LINKS
from drumline.infra.grafana.rules_pipeline import PIPELINE

Json = dict[str, Any]
Contact = Literal["webhook", "slack", "pagerduty"]
CONTACTS: tuple[Contact, ...] = ("webhook", "slack", "pagerduty")
GROUPS: tuple[Group, ...] = (JOBS, LINKS, DEVICES, PIPELINE)
RECEIVER = "drumline-on-call"
#: Where files take secrets and addresses from: Grafana's own environment, never this repository.
ADDRESSES: dict[Contact, str] = {kind: f"DRUMLINE_ALERT_{kind.upper()}" for kind in CONTACTS}
TITLE, MESSAGE = '{{ template "drumline.title" . }}', '{{ template "drumline.message" . }}'
TEMPLATE = """
{{ define "drumline.title" -}}
[{{ .Status | toUpper }}] {{ .CommonLabels.alertname }}{{ with .CommonLabels.job }} {{ . }}{{ end }} ({{ len .Alerts }})
{{- end }}
{{ define "drumline.message" -}}
{{ range .Alerts -}}
{{ .Annotations.summary }}
{{ .Annotations.description }}
{{ .Annotations.dashboard }}&from={{ (.StartsAt.Add -3600000000000).UnixMilli }}&to={{ if eq .Status "resolved" -}}
{{ .EndsAt.UnixMilli }}{{ else }}now{{ end }}
{{ end -}}
{{- end }}
""".strip()


def rules() -> list[Rule]:
    return [rule for group in GROUPS for rule in group.rules]


def _duration(seconds: int) -> str:
    return f"{seconds // 60}m" if seconds and seconds % 60 == 0 else f"{seconds}s"


def _data(rule: Rule) -> list[Json]:
    span = {"from": rule.range_s, "to": rule.until_s}
    source = {"type": PLUGIN, "uid": SOURCE_UID}
    found: list[Json] = []
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
        found.append({"refId": values.ref, "datasourceUid": SOURCE_UID, "relativeTimeRange": span, "model": model})
    compare = {"evaluator": {"type": rule.compare, "params": list(rule.limit)}}
    expression = {"type": "__expr__", "uid": "__expr__"}
    model = {
        "refId": CONDITION,
        "type": "threshold",
        "expression": rule.values[0].ref,
        "datasource": expression,
        "conditions": [compare],
    }
    found.append(
        {"refId": CONDITION, "datasourceUid": "__expr__", "relativeTimeRange": {"from": 0, "to": 0}, "model": model}
    )
    return found


def _annotations(rule: Rule) -> Json:
    return {
        "summary": rule.summary,
        "description": rule.description,
        "dashboard": link(rule, _panel_id(rule)),
        "limit": rule.reason,
    }


def _panel_id(rule: Rule) -> int:
    """Raises KeyError: the rule names a dashboard or panel that is not there."""
    dashboards = {made.uid: made for made in DASHBOARDS}
    return panel_ids(dashboards[rule.shows[0]])[rule.shows[1]]


def rule_for_file(rule: Rule) -> Json:
    return {
        "uid": rule.uid,
        "title": rule.title,
        "condition": CONDITION,
        "dashboardUid": rule.shows[0],
        "panelId": _panel_id(rule),
        "for": _duration(rule.for_s),
        "keepFiringFor": _duration(rule.keep_s),
        "missing_series_evals_to_resolve": rule.missing,
        "noDataState": rule.no_data,
        "execErrState": "Error",
        "isPaused": False,
        "labels": {"severity": rule.severity, "team": "drumline"},
        "annotations": _annotations(rule),
        "data": _data(rule),
    }


def group_for_http(group: Group) -> Json:
    """PUT /api/v1/provisioning/folder/UID/rule-groups/NAME."""
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
                "for": _duration(rule.for_s),
                "keep_firing_for": _duration(rule.keep_s),
                "missingSeriesEvalsToResolve": rule.missing,
                "noDataState": rule.no_data,
                "execErrState": "Error",
                "isPaused": False,
                "labels": {"severity": rule.severity, "team": "drumline"},
                "annotations": {
                    **_annotations(rule),
                    "__dashboardUid__": rule.shows[0],
                    "__panelId__": str(_panel_id(rule)),
                },
                "data": _data(rule),
            }
            for rule in group.rules
        ],
    }


def receiver(kind: Contact, address: str) -> Json:
    """A receiver of the contact point. `address`: a URL or PagerDuty's integration key, or the variable with it."""
    settings: dict[Contact, Json] = {
        "webhook": {"url": address, "httpMethod": "POST", "title": TITLE, "message": MESSAGE},
        "slack": {"url": address, "title": TITLE, "text": MESSAGE},
        "pagerduty": {
            "integrationKey": address,
            "severity": "{{ .CommonLabels.severity }}",
            "summary": TITLE,
            "details": {"message": MESSAGE},
        },
    }
    return {"uid": f"drumline-{kind}", "type": kind, "settings": settings[kind], "disableResolveMessage": False}


def policies() -> Json:
    """The tree. One message for a job and rule, with all its ranks; what is critical does not wait."""
    return {
        "receiver": RECEIVER,
        "group_by": ["grafana_folder", "alertname", "job", "run"],
        "group_wait": "30s",
        "group_interval": "5m",
        "repeat_interval": "12h",
        "routes": [
            {
                "receiver": RECEIVER,
                "object_matchers": [["team", "=", "drumline"], ["severity", "=", "critical"]],
                "group_wait": "5s",
                "group_interval": "1m",
                "repeat_interval": "1h",
            }
        ],
    }


def data_source(host: str, port: int | str, user: str, database: str, secure: bool | str, protocol: str) -> Json:
    """Without its password. Both files and HTTP use these names. Not the default: all of ours names it by its uid, and
    Grafana does not start if files declare two defaults."""
    return {
        "name": "ClickHouse",
        "uid": SOURCE_UID,
        "type": PLUGIN,
        "access": "proxy",
        "isDefault": False,
        "jsonData": {
            "host": host,
            "port": port,
            "protocol": protocol,
            "username": user,
            "defaultDatabase": database,
            "secure": secure,
            "dialTimeout": "10",
            "queryTimeout": "30",
            "validateSql": True,
        },
    }


def _file_source(tls: bool, ca: bool) -> Json:
    """The data source with variables of Grafana's environment. Whether TLS is used cannot be one: Grafana makes text of
    it, and the plugin wants true or false."""
    env = "$DRUMLINE_CLICKHOUSE_"
    source = data_source(f"{env}HOST", f"{env}PORT", f"{env}USER", f"{env}DATABASE", tls, "native")
    secrets = {"password": f"{env}PASSWORD"}
    if ca:
        source["jsonData"]["tlsAuthWithCACert"] = True
        secrets["tlsCACert"] = f"{env}CA"
    return {**source, "orgId": 1, "editable": False, "secureJsonData": secrets}


def provisioning_files(
    contacts: Iterable[Contact] = ("webhook",), *, tls: bool = False, ca: bool = False
) -> dict[Path, str]:
    """Path -> content, as committed. Grafana fails to start on a contact point whose variable is empty, so only chosen
    ones are written. `tls`: to ClickHouse; `ca`: by a CA of one's own, whose certificate is in a variable."""
    provider = {
        "name": "drumline",
        "orgId": 1,
        "folder": FOLDER,
        "folderUid": FOLDER_UID,
        "type": "file",
        "disableDeletion": True,
        "updateIntervalSeconds": 30,
        "allowUiUpdates": False,
        "options": {"path": "/etc/drumline/dashboards", "foldersFromFilesStructure": False},
    }
    groups = [
        {
            "orgId": 1,
            "name": g.name,
            "folder": FOLDER,
            "interval": _duration(g.interval_s),
            "rules": [rule_for_file(r) for r in g.rules],
        }
        for g in GROUPS
    ]
    point = {"orgId": 1, "name": RECEIVER, "receivers": [receiver(kind, f"${ADDRESSES[kind]}") for kind in contacts]}
    files: dict[str, Mapping[str, Any]] = {
        "datasources/clickhouse.yaml": {
            "prune": True,
            "datasources": [_file_source(tls, ca)],
        },
        "dashboards/drumline.yaml": {"providers": [provider]},
        "alerting/rules.yaml": {"groups": groups},
        "alerting/contact-points.yaml": {"contactPoints": [point]},
        "alerting/policies.yaml": {"policies": [{"orgId": 1, **policies()}]},
        "alerting/templates.yaml": {"templates": [{"orgId": 1, "name": "drumline", "template": TEMPLATE}]},
    }
    return {HERE / "provisioning" / name: yaml_text({"apiVersion": 1, **content}) for name, content in files.items()}


def yaml_text(value: Any) -> str:
    """YAML of plain values, the same bytes for the same values; text of several lines as it is."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def words(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Plain.add_representer(str, words)
    made: str = yaml.dump(value, Dumper=Plain, sort_keys=False, width=100_000, allow_unicode=True)
    return f"# Generated by `drumline grafana generate`; edit infra/grafana/*.py instead.\n{made}"
