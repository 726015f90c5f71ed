"""Each alert leads to a page that states what to do, in Grafana's files and in Prometheus'."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, urlsplit

import pytest
import yaml
from starlette.requests import Request
from starlette.testclient import TestClient

from drumline.infra.config.servers import WEB_PAGE
from drumline.infra.config.settings import Settings
from drumline.infra.grafana.provisioning.files import provisioning_files
from drumline.infra.grafana.provisioning.rules import rules
from drumline.infra.guidance.causes import CAUSES, WITHOUT_WINDOWS
from drumline.infra.guidance.hangs import HANGS
from drumline.views.serve.app import application
from drumline.views.serve.runs.pages import parts_of

ROOT = Path(__file__).parents[3]
PROMETHEUS = [(ROOT / "infra/prometheus" / name).read_text() for name in ("rules.yml", "verdicts.yml")]
#: Each process that collects tests needs the names; the rules cost a second, in the one that runs these tests.
NAMES = [*(rule.uid for rule in rules()), *re.findall(r"^ *-? alert: (\S+)$", "".join(PROMETHEUS), re.MULTILINE)]


@cache
def alerts():
    """Annotations of each rule in the files, by its name."""
    grafana = next(text for path, text in provisioning_files().items() if path.name == "rules.yaml")
    return {
        rule.get("uid", rule.get("alert")): rule["annotations"]
        for text in (grafana, *PROMETHEUS)
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "record" not in rule
    }


@pytest.fixture(scope="module")
def browser():
    return TestClient(application(Settings()), base_url=WEB_PAGE)


def test_no_alert_of_the_files_is_left_out():
    assert sorted(alerts()) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_states_cause_check_and_action_and_leads_to_its_page(browser, name):
    annotations = alerts()[name]
    assert len({annotations[name] for name in ("summary", "check", "act", "escalate")}) == 4
    ends = (".", "?", "{{ end }}", ".Labels.check }}", ".Labels.act }}")
    assert all(annotations[name].endswith(ends) for name in ("check", "act"))
    assert annotations.get("description", annotations["summary"])
    if "{{" not in annotations["runbook_url"]:
        assert annotations["runbook_url"] == f"{WEB_PAGE}/alert/{name}"
    page = browser.get(f"/alert/{name}")
    assert page.status_code == 200
    by_cause = "$values." in annotations["act"]
    assert ("<dt>Check, do</dt>" if by_cause else "<dt>Do</dt>") in page.text
    assert "<dt>Escalate</dt>" in page.text
    assert "{{" not in page.text, "a template of Grafana"
    assert "`" not in page.text, "what people type is shown as code"


def test_a_message_has_all_texts_of_its_rule():
    [text] = [t for p, t in provisioning_files().items() if p.name == "templates.yaml"]
    for name in ("summary", "description", "check", "act", "escalate", "runbook_url", "dashboard"):
        assert f"{{{{ .Annotations.{name} }}}}" in text


def test_links_lead_to_the_web_page_of_the_settings():
    [text] = [t for p, t in provisioning_files(web_page="https://drumline.example").items() if p.name == "rules.yaml"]
    assert "https://drumline.example/alert/drumline-job-stalled" in text
    assert "https://drumline.example/job/{{ $labels.job | urlquery }}" in text
    assert WEB_PAGE not in text


@pytest.mark.parametrize("name", ["a b", "a+b", "a/b c+d", "100%"])
@pytest.mark.parametrize("link", [quote_plus, lambda name: quote(name, safe="")], ids=["Grafana's", "drumline's"])
def test_the_page_of_a_job_is_found_by_any_link_whatever_its_name_is(name, link):
    path = f"/job/{link(name)}/rank/3"
    assert parts_of(Request({"type": "http", "path": unquote(path), "raw_path": path.encode()})) == [name, "rank", "3"]


def test_an_unknown_alert_is_not_found(browser):
    assert browser.get("/alert/other").status_code == 404


@pytest.mark.parametrize("entry", [*CAUSES, *WITHOUT_WINDOWS, *HANGS], ids=lambda entry: entry.page)
def test_every_cause_that_an_alert_may_link_has_its_section(browser, entry):
    address = urlsplit(entry.page)
    page = browser.get(address.path)
    assert page.status_code == 200
    assert f'<section id="{address.fragment}"' in page.text


def test_alerts_whose_text_depends_on_the_cause_link_its_section():
    guides = [annotations["runbook_url"] for annotations in alerts().values() if "{{" in annotations["runbook_url"]]
    stragglers, unevaluated, hung = sorted(guides, key=len, reverse=True)
    assert all(f"}}}}{entry.page}{{{{" in stragglers for entry in CAUSES)
    assert all(f"}}}}{entry.page}{{{{" in unevaluated for entry in WITHOUT_WINDOWS)
    assert urlsplit(hung).path == "/cause/hung"


def test_an_alert_about_a_job_leads_to_its_page_and_its_commands_name_it():
    assert alerts()["drumline-straggler"]["page"] == (
        f"{WEB_PAGE}/job/{{{{ $labels.job | urlquery }}}}"
        '{{ if ne $labels.rank "all" }}/rank/{{ $labels.rank }}{{ end }}'
    )
    assert alerts()["drumline-job-stalled"]["page"] == f"{WEB_PAGE}/job/{{{{ $labels.job | urlquery }}}}"
    assert not [name for name, rule in alerts().items() if "--job JOB" in rule["check"] + rule["act"]]
