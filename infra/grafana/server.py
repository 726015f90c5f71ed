"""Compares a Grafana server with the declared dashboards and rules, over HTTP with grafana-client, and changes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from drumline.infra.config.settings import Settings
from drumline.infra.grafana.catalog import DASHBOARDS
from drumline.infra.grafana.model import FOLDER, FOLDER_UID, Json
from drumline.infra.grafana.provisioning.contacts import CONTACTS, RECEIVER, TEMPLATE, policies, receiver
from drumline.infra.grafana.provisioning.files import data_source
from drumline.infra.grafana.provisioning.rules import GROUPS, group_for_http
from drumline.infra.grafana.render.dashboard import dashboard_json

#: Settings of contact points that Grafana hides in answers.
_SECRETS = frozenset({"url", "integrationKey"})
#: Fields that Grafana adds to dashboards, panels, variables and rules.
_SERVERS = frozenset(
    {"id", "version", "iteration", "pluginVersion", "definition", "guid", "updated", "provenance", "metadata"}
)
#: Values that equal a missing one: servers leave them out, or add them.
_NOTHING: tuple[Any, ...] = (None, "", 0, "0s", [], {})


class GrafanaFailed(RuntimeError):
    """Grafana rejected a request or does not answer. The message gives the reason and what to do."""


@dataclass(frozen=True)
class Change:
    """Describes one object of the server. `does` sends it; `differs` lists some of the differences."""

    subject: str
    kind: Literal["create", "change", "same"]
    does: Callable[[], Any]
    differs: tuple[str, ...] = ()


def difference(wanted: Any, current: Any, at: str = "") -> Iterator[str]:
    """Yield the paths at which `current` differs from `wanted`.

    Not a difference: a key without a value, a value that the server adds, and a secret that it hides.
    """
    if isinstance(wanted, Mapping) and isinstance(current, Mapping):
        for key, value in wanted.items():
            path = f"{at}.{key}" if at else key
            if at == "settings" and key in _SECRETS and "REDACTED" in str(current.get(key, "REDACTED")):
                continue
            if key in current:
                yield from difference(value, current[key], path)
            elif value not in _NOTHING:
                yield path
        for key in current.keys() - wanted.keys() - _SERVERS:
            if current[key] not in _NOTHING:
                yield f"{at}.{key} (added)" if at else f"{key} (added)"
    elif isinstance(wanted, list) and isinstance(current, list):
        if len(wanted) != len(current):
            yield f"{at} ({len(current)} instead of {len(wanted)})"
        for number, (wanted_item, current_item) in enumerate(zip(wanted, current, strict=False)):
            yield from difference(wanted_item, current_item, f"{at}[{number}]")
    elif wanted != current:
        yield at


class Server:
    """Talks to one Grafana; calls block. All of them raise GrafanaFailed."""

    def __init__(self, settings: Settings) -> None:
        grafana = settings.grafana
        if not grafana.url:
            raise GrafanaFailed("no server is set: DRUMLINE_GRAFANA__URL=http://host:3000")
        if grafana.token is None:
            raise GrafanaFailed(
                "set DRUMLINE_GRAFANA__TOKEN_FILE: a file with the token of a service account with role Admin "
                "(Grafana: Administration, Service accounts)"
            )
        from grafana_client import GrafanaApi

        parts = urlsplit(grafana.url)
        prefix = parts.path.strip("/")
        self._settings, self._where = settings, grafana.url
        self._api: Any = GrafanaApi(
            grafana.token.get_secret_value(), host=parts.hostname, port=parts.port, protocol=parts.scheme,
            url_path_prefix=f"{prefix}/" if prefix else "", verify=str(settings.ca or "") or True, timeout=30.0,
        )  # fmt: skip

    @contextmanager
    def _explained(self, subject: str) -> Iterator[None]:
        import requests
        from grafana_client.client import GrafanaException

        try:
            yield
        except GrafanaException as error:
            hint = {
                401: "; the token is wrong or expired",
                403: "; the token's service account needs role Admin",
                412: "; it was changed meanwhile, try again",
            }.get(error.status_code, "")
            raise GrafanaFailed(f"{self._where}: {subject}: {error.message}{hint}") from None
        except requests.exceptions.RequestException as error:
            raise GrafanaFailed(f"{self._where} does not answer: {error}") from None

    def _get(self, subject: str, call: Callable[[], Any]) -> Any:
        """Return the answer; None where the object does not exist."""
        with self._explained(subject):
            from grafana_client.client import GrafanaClientError

            try:
                return call()
            except GrafanaClientError as error:
                if error.status_code == 404:
                    return None
                raise

    def changes(self, with_policies: bool = False) -> Iterator[Change]:
        """Yield the changes in the order in which they have to be made.

        `with_policies`: also the policy tree, which replaces the one of the server.
        """
        api = self._api
        current = self._get("folder", partial(api.folder.get_folder, FOLDER_UID))
        make = partial(api.folder.create_folder, FOLDER, FOLDER_UID)
        rename = partial(api.folder.update_folder, FOLDER_UID, title=FOLDER, overwrite=True)
        yield self._change(f"folder {FOLDER}", {"title": FOLDER}, current and {"title": current["title"]}, make, rename)
        yield from self._sources()
        for dashboard in DASHBOARDS:
            wanted = dashboard_json(dashboard, self._settings.serve.web_page)
            answer = self._get(dashboard.uid, partial(api.dashboard.get_dashboard, dashboard.uid))
            body = {
                "dashboard": wanted,
                "folderUid": FOLDER_UID,
                "overwrite": True,
                "message": "drumline grafana apply",
            }
            send = partial(api.dashboard.update_dashboard, body)
            placed = answer and {**answer["dashboard"], "folder": answer["meta"].get("folderUid")}
            yield self._change(f"dashboard {dashboard.title}", {**wanted, "folder": FOLDER_UID}, placed, send)
        alerting = api.alertingprovisioning
        for group in GROUPS:
            wanted = group_for_http(group, self._settings.serve.web_page)
            current = self._get(group.name, partial(alerting.get_rule_group, FOLDER_UID, group.name))
            send = partial(alerting.update_rule_group, FOLDER_UID, group.name, wanted)
            yield self._change(f"rules {group.name}", wanted, current, send)
        yield from self._notifications(with_policies)

    def _change(
        self,
        subject: str,
        wanted: Json,
        current: Any,
        create: Callable[[], Any],
        change: Callable[[], Any] | None = None,
    ) -> Change:
        def send(call: Callable[[], Any]) -> None:
            with self._explained(subject):
                call()

        if not current:
            return Change(subject, "create", partial(send, create))
        differs = tuple(difference(wanted, current))
        return Change(subject, "change" if differs else "same", partial(send, change or create), differs[:8])

    def _sources(self) -> Iterator[Change]:
        """Create the data sources that are missing, one for each replica: dashboards list them in a variable."""
        yield self._source(self._settings.clickhouse_url, "")
        for name, url in self._settings.clickhouse.replicas.items():
            yield self._source(url, name)

    def _source(self, address: str, replica: str) -> Change:
        """Create the data source if there is none; an existing one is the administrator's."""
        clickhouse, api = self._settings.clickhouse, self._api
        url = urlsplit(address)
        secure = url.scheme == "https"
        wanted = data_source(
            url.hostname or "", url.port or (8443 if secure else 8123), clickhouse.reader,
            clickhouse.database, secure, "http", replica,
        )  # fmt: skip
        uid, subject = wanted["uid"], f"data source {wanted['name']}"
        current = self._get("data source", lambda: api.datasource.get_datasource_by_uid(uid))
        if current:
            return Change(subject, "same", lambda: None)
        if clickhouse.reader_password is None:
            raise GrafanaFailed(
                f"{self._where} has no data source with uid {uid!r}; to create it, set "
                "DRUMLINE_CLICKHOUSE__READER and __READER_PASSWORD_FILE to Grafana's user, and __URL to what it reaches"
            )
        body = {**wanted, "secureJsonData": {"password": clickhouse.reader_password.get_secret_value()}}
        return self._change(subject, wanted, None, lambda: api.datasource.create_datasource(body))

    def _notifications(self, with_policies: bool) -> Iterator[Change]:
        alerting, grafana = self._api.alertingprovisioning, self._settings.grafana
        points = {p.get("uid"): p for p in self._get("contact points", alerting.get_contactpoints) or ()}
        addresses = {"webhook": grafana.webhook, "slack": grafana.slack, "pagerduty": grafana.pagerduty}
        for kind in CONTACTS:
            if address := addresses[kind]:
                wanted = {**receiver(kind, address.get_secret_value()), "name": RECEIVER}
                create = partial(alerting.create_contactpoint, wanted)
                change = partial(alerting.update_contactpoint, wanted["uid"], wanted)
                yield self._change(f"contact point {kind}", wanted, points.get(wanted["uid"]), create, change)
        templates = {
            t["name"]: {"template": t["template"]} for t in self._get("templates", alerting.get_templates) or ()
        }
        body = {"template": TEMPLATE}
        send = partial(alerting.create_or_update_template, "drumline", body)
        yield self._change("template drumline", body, templates.get("drumline"), send)
        if with_policies:
            tree = self._get("policies", alerting.get_notification_policy_tree)
            send = partial(alerting.set_notification_policy_tree, policies())
            yield self._change("policies", policies(), tree, send)

    def export(self) -> Iterator[tuple[str, str]]:
        """Yield (file name, content) of drumline's dashboards and rules as the server has them; missing ones are left
        out.
        """
        for dashboard in DASHBOARDS:
            current = self._get(dashboard.uid, partial(self._api.dashboard.get_dashboard, dashboard.uid))
            if current:
                board = {k: v for k, v in current["dashboard"].items() if k not in ("id", "version")}
                yield f"{dashboard.uid}.json", json.dumps(board, indent=1, ensure_ascii=False) + "\n"
        for group in GROUPS:
            call = partial(self._api.alertingprovisioning.get_rule_group, FOLDER_UID, group.name)
            if current := self._get(group.name, call):
                yield f"{group.name}.rules.json", json.dumps(current, indent=1, ensure_ascii=False) + "\n"
