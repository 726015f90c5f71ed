"""A rank for which a job stands still: that outranks its last verdict on pages, in explain and in top."""

import io
import re
from contextlib import closing
from datetime import timedelta
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from support import migrated_database, stored_job

from drumline.infra.clickhouse.client import command, connect, rows
from drumline.infra.runtime.terminal import terminal_console
from drumline.views.report.explanation import explain
from drumline.views.report.gaps import no_verdict
from drumline.views.serve.app import application
from drumline.views.serve.job_page import job_page
from drumline.views.top.data import snapshot
from drumline.views.top.keys import ViewState
from drumline.views.top.view import view

pytestmark = pytest.mark.stack
JOB = stored_job.JOB
NOTE = "3 of 4 ranks wait in AllReduce 41; rank 0 has not called it."


@pytest.fixture
def query(clean_stack):
    """A job in whose last window rank 1 is late; then it stands still, and waits for rank 0, whose verdict is ok."""
    migrated_database.create(clean_stack)
    stored_job.store(clean_stack)
    with closing(connect(clean_stack, database=clean_stack.clickhouse.database)) as client:
        since = f"toDateTime64('{stored_job.START:%F %T}', 9, 'UTC')"
        for revision, state in ((0, "standing"), (1, "hung")):
            command(
                client,
                "INSERT INTO hangs_versions (job, run, rank, host, episode, revision, state, start, time, reason, "
                f"note, published, _offset) SELECT '{JOB}', 'r1', arrayJoin([-1, 0]) AS rank, 'h', 1, "
                f"{revision}, '{state}', {since} + 40, {since} + {60 + 100 * revision}, 'not_called', '{NOTE}', "
                f"now64(3), {revision}",
            )
        yield lambda sql, values: rows(client, sql, values)


def test_the_rank_is_the_first_of_its_job_and_hung(query):
    first, second, *_ = job_page(query, JOB, "", "", "", 0.0, lambda known, new: None).ranks
    assert (first.rank, first.level) == (0, "hung")
    assert (second.rank, second.level) == (1, "warning")


def test_explain_does_not_call_it_healthy(query):
    explained = explain(query, JOB, "", 0)
    assert explained.texts == []
    assert no_verdict(explained.windows, 0, 2, explained.hangs) == f"the job waits for rank 0: {NOTE}"
    assert no_verdict(explained.windows, 1, 2, explained.hangs).startswith("rank 1 does not hold this job back")


def test_top_has_it_first_without_a_green_ok(query):
    seen = snapshot(query, JOB)
    console = terminal_console(file=io.StringIO(), width=120, color_system=None)
    console.print(view(seen, 120, 50, "", state=ViewState()))
    shown = console.file.getvalue()
    table = shown[shown.index("step ms") :].splitlines()[1:3]
    assert re.match(r"\s*0 ", table[0]), shown
    assert "hung: the job waits for it" in table[0]
    assert re.match(r"\s*1 ", table[1])


def test_pages_have_no_green_badge_for_it(clean_stack, query):
    browser, at = TestClient(application(clean_stack), base_url="http://localhost:18080"), f"/job/{quote(JOB, safe='')}"
    page = browser.get(f"{at}/rank/0").text
    assert re.search(r"<h1>Rank 0 <span class=.badge hung.><b>the job waits for it", page)
    assert "does not hold this job back" not in page
    [_, row] = browser.get(at).text.split("<tbody>")[:2]
    assert row.index("/rank/0") < row.index("/rank/1")
    assert "badge hung" in row[: row.index("/rank/1")]
    assert "badge ok" not in row[: row.index("/rank/1")]


def test_the_headline_of_the_job_is_hung_whatever_part_is_shown_and_its_box_links_the_rank(clean_stack, query):
    browser, at = TestClient(application(clean_stack), base_url="http://localhost:18080"), f"/job/{quote(JOB, safe='')}"
    since = f"{stored_job.START + timedelta(seconds=40):%F %T}"
    early = f"{at}?to={(stored_job.START + timedelta(seconds=30)).timestamp() * 1000:.0f}"
    for address in (at, early):
        assert f"<b>hung since {since} UTC</b></span></h1>" in browser.get(address).text
    page = browser.get(at).text
    box = page[page.index('<section class="notice hung"') : page.index('<section class="summary"')]
    assert f'<a href="{at}/rank/0">rank 0</a> has not called it.' in box
    assert page.count(NOTE.split("; ")[0]) == 1, "the summary does not state it again"
    assert "docs/" not in page
