"""The pages: what a person sees with the engine's rows, without rows, without an engine, and of hostile names."""

from types import SimpleNamespace
from urllib.parse import quote, urlencode

import pytest
from starlette.testclient import TestClient
from support import migrated_database
from support.report_data import HOSTILE
from support.stored_job import JOB, store

from drumline.infra.clickhouse.client import TransientError
from drumline.infra.config.settings import LocalSettings, Settings
from drumline.infra.guidance.causes import CAUSES
from drumline.infra.guidance.hangs import HANGS
from drumline.views.report.data import NoSuchRun
from drumline.views.serve import app, queries
from drumline.views.serve.app import application, job_url
from drumline.views.serve.fleet import fleet
from drumline.views.serve.runs import pages
from drumline.views.serve.timeline import TimelinePart, choose, merge, svg
from drumline.views.top.data import JOBS


def browser(settings):
    return TestClient(application(settings), base_url="http://localhost:18080")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Pages whose database answers from a table: text of a query -> rows, or an error."""
    answers = {JOBS: []}

    def query(self, sql, parameters):
        rows = answers[sql]
        if isinstance(rows, Exception):
            raise rows
        return rows

    monkeypatch.setattr(app.Database, "query", query)
    return browser(Settings(local=LocalSettings(state=tmp_path))), answers


def job(name, age_s=5.0, **changes):
    return {"job": name, "run": "r1", "ranks": 4, "hosts": 2, "kernels": 10, "dropped_rows": 0, "ended": "",
            "age_s": age_s} | changes  # fmt: skip


def newest(name, state="ok", rank=3):
    return {"job": name, "run": "r1", "now": (rank, "node-b", state, "slow_copy", "pageable", 0.26)}


def cost(name, lost, rank=3):
    return {"job": name, "run": "r1", "gpu_seconds": lost, "named": 1,
            "costliest": (rank, "node-b", "slow_copy", "pageable")}  # fmt: skip


def test_jobs_that_stand_still_come_first_then_the_worst_alarm_and_ended_ones_last():
    hang = {"job": "d", "run": "r1", "state": "hung", "reason": "gone", "note": "rank 1 has ended", "seconds": 300}
    rows = {
        JOBS: [job("a"), job("b"), job("c", age_s=900), job("d"), job("e")],
        queries.FLEET_NOW: [newest("a", "warning"), newest("b", "critical"), newest("c", "critical")],
        queries.FLEET_COSTS: [cost("a", 5), cost("b", 2), cost("c", 9)],
        queries.FLEET_HANGS: [hang],
        queries.FLEET_LABELS: [{"job": name, "run": "r1", "labels": {"team": team, "user": "ada"}} for name, team in
                               (("a", "vision"), ("c", "vision"), ("b", "speech"))],
    }  # fmt: skip
    jobs = fleet(lambda sql, values: rows[sql])
    assert [(entry.job, entry.level) for entry in jobs] == [
        ("d", "hung"), ("b", "critical"), ("a", "warning"), ("e", "unknown"), ("c", "ended"),
    ]  # fmt: skip
    assert [entry.job for entry in fleet(lambda sql, values: rows[sql], "lost")][:2] == ["c", "a"]
    assert [entry.job for entry in fleet(lambda sql, values: rows[sql], "", {"team": "vision", "user": "ada"})] == [
        "a",
        "c",
    ]
    assert fleet(lambda sql, values: rows[sql], "", {"team": "vision", "user": "bob"}) == []


def test_an_empty_fleet_states_what_to_do(offline):
    client, _ = offline
    answer = client.get("/")
    assert answer.status_code == 200
    assert "drumline demo --live" in answer.text


def test_an_engine_that_is_down_gives_the_command_that_starts_it(offline):
    client, answers = offline
    answers[JOBS] = TransientError("ClickHouse does not answer (Connection refused)")
    answer = client.get("/")
    assert answer.status_code == 503
    assert "<code>drumline up</code>" in answer.text
    assert 'data-every="3"' in answer.text


def test_an_unknown_job_is_a_404_that_lists_the_jobs(offline, monkeypatch):
    client, answers = offline
    answers[JOBS] = [job("llama/70b")]

    def unknown(*_, **named):
        raise NoSuchRun("no job 'x' is stored")

    monkeypatch.setattr(pages, "job_page", unknown)
    answer = client.get("/job/x")
    assert answer.status_code == 404
    assert 'href="/job/llama%2F70b"' in answer.text


def test_hostile_names_arrive_as_text(offline):
    client, answers = offline
    answers |= {JOBS: [job(HOSTILE)], queries.FLEET_NOW: [newest(HOSTILE, "critical")],
                queries.FLEET_COSTS: [cost(HOSTILE, 3)], queries.FLEET_HANGS: [],
                queries.FLEET_LABELS: [{"job": HOSTILE, "run": "r1", "labels": {"team": HOSTILE}}]}  # fmt: skip
    text = client.get("/").text
    assert "<script>alert" not in text
    assert quote(HOSTILE, safe="") in text
    assert f"/?{urlencode({'team': HOSTILE})}" in text
    assert "has these labels" in client.get("/", params={"team": "x"}).text


@pytest.mark.parametrize("path", ["/job/x/rank/one", "/job/x?from=noon", "/job/x?to=99999999999999999999"])
def test_a_value_that_is_no_number_or_time_is_named(offline, path):
    assert offline[0].get(path).status_code == 400


@pytest.mark.parametrize("path", ["/nothing", "/cause/nothing", "/job/", "/job/a/b/c/d", "/static/../app.py"])
def test_an_address_that_is_no_page_is_a_404(offline, path):
    assert offline[0].get(path).status_code == 404


def test_every_cause_and_reason_has_a_page_that_alerts_can_link_to(offline):
    client, _ = offline
    index = client.get("/causes").text
    for entry in (*CAUSES, *HANGS):
        page = client.get(f"/cause/{entry.cause}").text
        assert f'id="{entry.detail or entry.cause}"' in page
        assert f"/cause/{entry.cause}" in index


def test_addresses_are_stable_and_quoted():
    assert job_url("a/b c", "r&1") == "/job/a%2Fb%20c?run=r%261"
    assert job_url("demo", rank=3) == "/job/demo/rank/3"
    assert job_url("demo", "r", rank=3, step=26) == "/job/demo/step/26?run=r&rank=3"


def test_a_step_shows_the_latest_ranks_and_some_that_waited():
    ranks = [{"rank": rank, "late_ms": 1000 - rank} for rank in range(1000)]
    assert [row["rank"] for row in choose(ranks, 500)] == [0, 1, 2, 500, 996, 997, 998, 999]
    assert len(choose(ranks[:3], None)) == 3


def test_neighbouring_parts_of_one_kind_are_one_and_empty_parts_are_left_out():
    rows = [{"rank": 0, "bin": place, "kind": "matrix", "ns": 1e6} for place in (0, 1, 2, 7)]
    rows += [{"rank": 0, "bin": 2, "kind": "copy", "ns": 2e6}, {"rank": 0, "bin": 9, "kind": "other", "ns": 10}]
    parts = merge(rows, 600.0)
    assert [(part.kind, part.begin_ms, part.end_ms) for part in parts] == [
        ("matrix", 0, 2), ("copy", 2, 3), ("matrix", 7, 8),
    ]  # fmt: skip


def test_the_drawing_of_a_step_escapes_names():
    row = {"rank": 1, "host": HOSTILE, "step_ms": 10.0}
    parts = [TimelinePart(1, "wait", 0, 5, HOSTILE), TimelinePart(1, "matrix", 20, 30)]
    drawn = svg(SimpleNamespace(drawn=[row], length_ms=10.0, step=4, rank=1, segments=parts))
    assert "<script" not in drawn
    assert drawn.count("<rect") == 3  # pattern, row, wait: what begins after the end is not drawn


@pytest.mark.stack
def test_stored_rows_arrive_on_every_page(clean_stack):
    migrated_database.create(clean_stack)
    store(clean_stack)
    client, at = browser(clean_stack), f"/job/{quote(JOB, safe='')}"
    shown = {}
    for path in ("/", at, f"{at}/rank/1", f"{at}/step/25?rank=1", "/questions", "/question/top-kernels"):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.text)
        assert "<b>job</b>" not in answer.text
        shown[path] = answer.text
    assert "slow copy" in shown["/"]
    assert 'href="/?user=a%26b"' in shown["/"]
    assert "team <a" in client.get("/", params={"user": "a&b"}).text
    assert f'href="{at}/rank/1' in shown[at]
    assert 'team <a href="/?team=vision">vision</a>' in shown[at]
    assert shown[at].index(f"{at}/rank/1") < shown[at].index(f"{at}/rank/0")
    assert "its copies between host and GPU took longer" in shown[f"{at}/rank/1"]
    assert "<svg" in shown[f"{at}/step/25?rank=1"]

    missing = client.get(f"{at}/rank/7")
    assert missing.status_code == 404
    question = {"job": JOB, "limit": "5"}
    answered = client.get("/question/top-kernels", params=question).text
    assert answered.index('<figure><div class="wide"') < answered.index("<svg") < answered.index("kernel</td>")
    assert "gpu_s by kernel</figcaption>" in answered
    assert "vision</td>" in client.get("/question/cost", params={"label": "user=a&b", "price": "3"}).text
    assert "No rows" in client.get("/question/cost", params={"team": "vision", "user": "b"}).text
    assert "a&amp;b</td>" in client.get("/question/cost-by-label", params={"by": "user"}).text
    csv = client.get("/question/top-kernels", params={**question, "format": "csv"})
    assert csv.text.splitlines()[0].startswith('"kernel"')
    assert client.get("/question/top-kernels", params={**question, "format": "parquet"}).content[:4] == b"PAR1"
    wrong = client.get("/question/top-kernels", params={**question, "limit": "many"})
    assert wrong.status_code == 400
    assert "limit" in wrong.text
    injected = client.get("/question/jobs", params={"job": "x' OR 1=1 --", "run": "r1"})
    assert "No rows" in injected.text
