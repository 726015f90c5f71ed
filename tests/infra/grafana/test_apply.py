"""drumline grafana apply, diff, export, generate: against a fake Grafana."""

import json

import pytest
from support.fakes.grafana import TOKEN, FakeGrafana
from typer.testing import CliRunner

from drumline.cli.operate import grafana as command_grafana
from drumline.infra.config.settings import settings
from drumline.infra.grafana.catalog import DASHBOARDS, dashboard_files
from drumline.infra.grafana.provisioning.contacts import policies, receiver
from drumline.infra.grafana.provisioning.rules import GROUPS, group_for_http
from drumline.infra.grafana.render.dashboard import dashboard_json
from drumline.infra.grafana.server import difference

RUNNER = CliRunner()


@pytest.fixture
def grafana(monkeypatch, tmp_path):
    fake = FakeGrafana()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "password").write_text("secret-word")
    for name, value in {
        "GRAFANA__URL": fake.url, "GRAFANA__TOKEN_FILE": str(tmp_path / "token"),
        "CLICKHOUSE__URL": "http://clickhouse:8123", "CLICKHOUSE__READER": "grafana",
        "CLICKHOUSE__READER_PASSWORD_FILE": str(tmp_path / "password"),
        "GRAFANA__WEBHOOK": "http://hook/secret-hook", "GRAFANA__PAGERDUTY": "secret-key",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"DRUMLINE_{name}", value)
    settings.cache_clear()
    yield fake
    fake.close()
    settings.cache_clear()


def call(*arguments):
    return RUNNER.invoke(command_grafana.app, arguments)


def test_apply_makes_all_of_it_once(grafana):
    first = call("apply")
    assert first.exit_code == 0, first.output
    assert set(grafana.things["dashboards"]) == {dashboard.uid for dashboard in DASHBOARDS}
    assert set(grafana.things["groups"]) == {group.name for group in GROUPS}
    assert set(grafana.things["points"]) == {"drumline-webhook", "drumline-pagerduty"}
    assert grafana.things["sources"]["clickhouse"]["jsonData"]["host"] == "clickhouse"
    assert not grafana.things["policies"], "the policy tree is replaced only when that is asked for"
    assert not any(secret in first.output for secret in ("secret", TOKEN))
    writes = len(grafana.writes)
    again = call("apply")
    assert "is up to date" in again.output
    assert len(grafana.writes) == writes


def test_dry_run_changes_nothing_and_lists_what_it_would(grafana):
    answer = call("apply", "--dry-run")
    assert answer.exit_code == 0
    assert "to do: create dashboard Fleet" in answer.output
    assert grafana.writes == []


def test_diff_shows_where_it_was_edited(grafana):
    call("apply")
    assert call("diff").exit_code == 0
    grafana.things["dashboards"]["drumline-fleet"]["dashboard"]["panels"][0]["title"] = "mine"
    grafana.things["groups"]["drumline-jobs"]["rules"][0]["for"] = "9m"
    answer = call("diff")
    assert answer.exit_code == 9
    assert "change dashboard Fleet: panels[0].title" in answer.output
    assert "change rules drumline-jobs: rules[0].for" in answer.output
    assert call("apply").exit_code == 0
    assert call("diff").exit_code == 0


def edits(thing):
    """Edit one value after the other and yield its path: change it, remove it, add another; each edit is undone."""
    if isinstance(thing, list):
        for number, item in enumerate(thing):
            yield from (f"[{number}]{at}" for at in edits(item))
        if thing:
            kept = thing.pop()
            yield "[-1] taken away"
            thing.append(kept)
    elif isinstance(thing, dict):
        for key, value in list(thing.items()):
            yield from (f".{key}{at}" for at in edits(value))
            if not isinstance(value, dict | list):
                thing[key] = "mine"
                yield f".{key} changed"
            if value not in (None, "", 0, "0s", [], {}):
                del thing[key]
                yield f".{key} taken away"
            thing[key] = value
        thing["mine"] = "mine"
        yield " added"
        del thing["mine"]


def first_of_each_kind(dashboard):
    """The dashboard with one panel of each kind: others have the same keys."""
    kinds = {panel["type"]: panel for panel in reversed(dashboard["panels"])}
    return dashboard | {"panels": list(kinds.values())}


@pytest.mark.parametrize(
    "wanted",
    [
        first_of_each_kind(dashboard_json(DASHBOARDS[0])),
        group_for_http(GROUPS[0]),
        receiver("webhook", "http://hook"),
        policies(),
    ],
    ids=["dashboard", "rules", "contact", "policies"],
)
def test_every_edit_is_a_difference_and_what_servers_add_is_none(wanted):
    current = json.loads(json.dumps(wanted))
    missed = [at for at in edits(current) if next(difference(wanted, current), None) is None]
    assert [at for at in missed if at != ".settings.url taken away"] == [], "it may be hidden"
    current |= {"version": 3, "updated": "2026-01-02", "weekStart": ""}
    assert list(difference(wanted, current)) == []


def test_a_hidden_secret_is_no_difference(grafana):
    call("apply")
    assert "contact point" not in call("diff").output
    del grafana.things["points"]["drumline-pagerduty"]["settings"]["summary"]
    assert "change contact point pagerduty: settings.summary" in call("diff").output


def test_a_dashboard_in_another_folder_and_a_renamed_folder_are_put_right(grafana):
    call("apply")
    grafana.things["dashboards"]["drumline-job"]["meta"]["folderUid"] = "mine"
    grafana.things["folders"]["drumline"]["title"] = "mine"
    output = call("diff").output
    assert "change dashboard Job: folder" in output
    assert "change folder drumline: title" in output
    call("apply")
    assert call("diff").exit_code == 0
    assert ("PUT", "/api/folders/drumline") in grafana.writes, "Grafana refuses to make a folder twice"


def test_policies_only_when_asked(grafana):
    call("apply", "--policies")
    assert grafana.things["policies"]["receiver"] == "drumline-on-call"
    assert call("diff", "--policies").exit_code == 0


def test_json_for_scripts(grafana):
    current = json.loads(call("apply", "--dry-run", "--json").stdout)
    assert {change["change"] for change in current["changes"]} == {"create"}


def test_export_fetches_what_is_there(grafana, tmp_path):
    call("apply")
    grafana.things["dashboards"]["drumline-job"]["dashboard"]["title"] = "edited"
    assert call("export", "-o", str(tmp_path / "out")).exit_code == 0
    assert json.loads((tmp_path / "out" / "drumline-job.json").read_text())["title"] == "edited"
    assert len(list((tmp_path / "out").iterdir())) == len(DASHBOARDS) + len(GROUPS)


@pytest.mark.parametrize(
    ("variable", "value", "hint"),
    [
        ("TOKEN_FILE", "/proc/sys/kernel/ostype", "the token is wrong or expired"),
        ("URL", "http://127.0.0.1:9", "does not answer"),
        ("URL", "", "DRUMLINE_GRAFANA__URL"),
    ],
)
def test_an_error_is_one_sentence(grafana, monkeypatch, variable, value, hint):
    monkeypatch.setenv(f"DRUMLINE_GRAFANA__{variable}", value)
    settings.cache_clear()
    answer = call("apply")
    assert answer.exit_code == 1
    assert hint in answer.output
    assert "Traceback" not in answer.output


def test_a_token_without_rights_and_a_broken_server_are_reported(grafana):
    grafana.status = 403
    assert "needs role Admin" in call("diff").output
    grafana.status = 500
    assert "Server Error 500" in call("diff").output


def test_a_missing_data_source_without_password_is_reported(grafana, monkeypatch):
    monkeypatch.delenv("DRUMLINE_CLICKHOUSE__READER_PASSWORD_FILE")
    settings.cache_clear()
    assert "DRUMLINE_CLICKHOUSE__READER" in call("apply").output


def test_written_files_are_the_same_each_time_and_know_contacts(tmp_path):
    assert call("write", "-o", str(tmp_path), "--contact", "slack").exit_code == 0
    for path, text in dashboard_files().items():
        assert (tmp_path / path).read_text() == text
    points = (tmp_path / "provisioning/alerting/contact-points.yaml").read_text()
    assert "$DRUMLINE_ALERT_SLACK" in points
    assert "WEBHOOK" not in points
    assert call("write", "-o", str(tmp_path), "--contact", "slack", "--check").exit_code == 0
    (tmp_path / "dashboards/drumline-job.json").write_text("{}")
    assert call("write", "-o", str(tmp_path), "--contact", "slack", "--check").exit_code == 9
    assert call("write", "--contact", "pigeon").exit_code == 2
