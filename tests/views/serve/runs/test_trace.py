"""The file of a step for Perfetto: of few ranks and rows, behind the page's access rules."""

from urllib.parse import quote

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
from pydantic import SecretStr
from starlette.testclient import TestClient
from support import migrated_database
from support.stored_job import JOB, START, store

from drumline.infra.config.settings import LocalSettings, Settings
from drumline.views.serve.addresses import trace_url
from drumline.views.serve.app import application
from drumline.views.serve.runs import trace

START_MS = int(START.timestamp()) * 1000
AT = f"/job/{quote(JOB, safe='')}/step/25"


def browser(settings):
    return TestClient(application(settings), base_url="http://localhost:18080")


@pytest.fixture
def offline(tmp_path):
    return Settings(local=LocalSettings(state=tmp_path))


def test_more_steps_than_a_file_has_are_refused_with_the_command(offline):
    answer = browser(offline).get(f"{AT}/timeline.pftrace?ranks=0&last={25 + trace.MOST_STEPS}")
    assert answer.status_code == 400
    assert "drumline timeline --job" in answer.text
    assert browser(offline).get(f"{AT}/timeline.pftrace?ranks=0&last=x").status_code == 400


def test_the_address_of_a_file_quotes_names():
    assert trace_url("a/b", "r 1", 7, [0, 3]) == "/job/a%2Fb/step/7/timeline.pftrace?run=r+1&ranks=0,3"


@pytest.mark.parametrize("query", ["", "?ranks=", "?ranks=0,1,2,3,4,5,6,7,8", "?ranks=0,x"])
def test_ranks_that_are_missing_too_many_or_no_numbers_are_named(offline, query):
    answer = browser(offline).get(f"{AT}/timeline.pftrace{query}")
    assert answer.status_code == 400
    assert "rank" in answer.text


def test_a_file_needs_the_token_of_the_page(offline):
    token = SecretStr("a-token-of-16-characters")
    settings = offline.model_copy(update={"serve": offline.serve.model_copy(update={"token": token})})
    assert browser(settings).get(f"{AT}/timeline.pftrace?ranks=0").status_code == 401


@pytest.mark.stack
def test_a_step_leads_to_its_file_which_is_bounded(clean_stack, monkeypatch):
    migrated_database.create(clean_stack)
    store(clean_stack)
    client = browser(clean_stack)
    page = client.get(f"{AT}?rank=1").text
    address = trace_url(JOB, "r1", 25, [0, 1])
    assert f'href="{address.replace("&", "&amp;")}"' in page
    answer = client.get(address)
    assert answer.headers["content-disposition"] == 'attachment; filename="step-25.pftrace"'
    packets = pb.Trace.FromString(answer.content).packet
    names = {packet.track_descriptor.process.process_name for packet in packets}
    assert {"rank 0", "rank 1"} <= names
    assert (
        client.get(AT.removesuffix("/25"), params={"step": "25", "rank": "1", "run": "r1"}).text.count("Step 25 across")
        == 1
    )
    assert client.get(trace_url(JOB, "r1", 900, [0])).status_code == 404
    several = trace_url(JOB, "r1", 20, [0, 1], 29)
    assert f'href="{several.replace("&", "&amp;")}"' in client.get(f"{AT}?rank=1&from_step=20&to_step=29").text
    answer = client.get(several)
    assert answer.headers["content-disposition"] == 'attachment; filename="steps-20-to-29.pftrace"'
    assert all(f"step {step}".encode() in answer.content for step in (20, 29))
    assert b"step 30" not in answer.content
    job = client.get(f"/job/{quote(JOB, safe='')}", params={"from": START_MS + 10_000, "to": START_MS + 15_000}).text
    assert "Perfetto file of steps 9 to 15, the worst ranks" in job
    monkeypatch.setattr(trace, "MOST_ROWS", 1)
    answer = client.get(address)
    assert answer.status_code == 503
    assert "drumline timeline --job" in answer.text
