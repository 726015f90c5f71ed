"""Files that Grafana reads at start: data source, dashboard provider, alert rules, contact points, policies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from drumline.infra.config.servers import WEB_PAGE
from drumline.infra.grafana.model import FOLDER, FOLDER_UID, PLUGIN, SOURCE_UID, Json
from drumline.infra.grafana.provisioning.contacts import ADDRESSES, RECEIVER, TEMPLATE, Contact, policies, receiver
from drumline.infra.grafana.provisioning.rules import GROUPS, duration, rule_for_file


def data_source(
    host: str, port: int | str, user: str, database: str, secure: bool | str, protocol: str, replica: str = ""
) -> Json:
    """Return the data source without its password, for files and for HTTP; that of a replica has its name.

    It is not the default one: dashboards name it by uid, and Grafana does not start if files declare two defaults.
    """
    return {
        "name": f"ClickHouse {replica}".rstrip(),
        "uid": f"{SOURCE_UID}-{replica}" if replica else SOURCE_UID,
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
    """Return the data source with variables of Grafana's environment.

    `tls` cannot be a variable: Grafana makes text of it, and the plugin needs true or false.
    """
    env = "$DRUMLINE_CLICKHOUSE_"
    source = data_source(f"{env}HOST", f"{env}PORT", f"{env}USER", f"{env}DATABASE", tls, "native")
    secrets = {"password": f"{env}PASSWORD"}
    if ca:
        source["jsonData"]["tlsAuthWithCACert"] = True
        secrets["tlsCACert"] = f"{env}CA"
    return {**source, "orgId": 1, "editable": False, "secureJsonData": secrets}


def provisioning_files(
    contacts: Iterable[Contact] = ("webhook",), *, tls: bool = False, ca: bool = False, web_page: str = WEB_PAGE
) -> dict[Path, str]:
    """Return path in the folder of files -> content.

    Grafana fails to start on a contact point whose variable is empty, so only chosen ones are written. `tls`: encrypt
    the connection to ClickHouse; `ca`: with a private CA, whose certificate is in a variable.
    `web_page`: address of `drumline serve`, for links in alerts.
    """
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
            "interval": duration(g.interval_s),
            "rules": [rule_for_file(r, web_page) for r in g.rules],
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
    folder = Path("provisioning")
    return {folder / name: yaml_text({"apiVersion": 1, **content}) for name, content in files.items()}


def yaml_text(value: Any) -> str:
    """Return YAML of plain values, the same bytes for the same values; text of several lines as a block."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Plain.add_representer(str, represent_text)
    dumped: str = yaml.dump(value, Dumper=Plain, sort_keys=False, width=100_000, allow_unicode=True)
    return f"# Written by `drumline grafana write` from infra/grafana/*.py.\n{dumped}"
