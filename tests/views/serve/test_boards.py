"""Pages of several questions: hosts, one host over all jobs, costs, and two runs side by side."""

from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support import migrated_database
from support.stored_job import JOB, store

from drumline.views.serve.addresses import compare_url
from drumline.views.serve.app import application
from drumline.views.serve.boards import links_of

AT = f"/job/{quote(JOB, safe='')}"


@pytest.mark.parametrize(
    ("names", "row", "links"),
    [
        (["job", "run", "gpus"], ["a/b", "r 1", "8"], ["/job/a%2Fb", "/job/a%2Fb?run=r+1", ""]),
        (["host", "worst_job", "worst_rank"], ["n/1", "a", "3"], ["/host/n%2F1", "/job/a", "/job/a/rank/3"]),
        (["job", "run", "rank"], ["a", "r", "-1"], ["/job/a", "/job/a?run=r", ""]),
        (["host", "job"], ["", ""], ["", ""]),
        (["label", "jobs", "runs"], ["vision", "1", "2"], ["", "", ""]),
    ],
)
def test_cells_of_jobs_runs_ranks_and_hosts_are_links(names, row, links):
    assert links_of(names, row) == links


def test_the_address_of_a_comparison_quotes_names():
    assert compare_url("a/b", "r&1", "r 2") == "/job/a%2Fb/compare?run=r%261&other_run=r+2"


@pytest.mark.stack
def test_boards_show_what_is_stored_and_link_it(clean_stack):
    migrated_database.create(clean_stack)
    store(clean_stack)
    browser = TestClient(application(clean_stack), base_url="http://localhost:18080")
    hosts = browser.get("/hosts").text
    assert '<a href="/host/h">h</a>' in hosts
    assert f'<a href="{AT}/rank/1">1</a>' in hosts
    host = browser.get("/host/h").text
    assert "<h1>h</h1>" in host
    assert "Nothing is stored of this." in host
    costs = browser.get("/costs").text
    assert "vision" in costs
    assert "a&amp;b" in costs
    assert f'<a href="{AT}?run=r1">r1</a>' in costs
    assert "No price is set" in costs
    compared = browser.get(compare_url(JOB, "r1", "r1")).text
    assert f'<a href="{AT}?run=r1">r1</a>' in compared
    absent = browser.get(compare_url(JOB, "r1", "r2")).text
    assert "has no run &#39;r2&#39;; there are: r1" in absent
    wrong = browser.get("/hosts", params={"since": "<soon>"})
    assert "&lt;soon&gt;&#39; is no time" in wrong.text
