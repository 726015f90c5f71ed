"""Every view there is keeps to its queries a tick, and to one set of them however many ask."""

import asyncio
import threading
from collections import Counter
from urllib.parse import quote

import pytest
from starlette.routing import Route
from support import migrated_database
from support.asgi import get
from support.stored_job import JOB, store

from drumline.views.serve import app, views
from drumline.views.serve.app import application
from drumline.views.serve.reading import MOST_QUERIES

pytestmark = pytest.mark.stack
AT = f"/job/{quote(JOB, safe='')}"
#: Addresses of the views behind each route, and the most ticks that one load of the view takes.
VIEWS = {
    "/": {"/": 1},
    "/job/{rest:path}": {
        AT: 4,
        f"{AT}/rank/1": 5,
        f"{AT}/step/25?rank=1": 2,
        f"{AT}/step/20?last=29&rank=1": 2,
        f"{AT}/compare?run=r1": 1,
        "/job/none": 1,
    },
    "/hosts": {"/hosts": 1},
    "/host/{name:path}": {"/host/h": 1},
    "/costs": {"/costs": 1},
    "/questions": {"/questions": 0},
    "/question/{name}": {"/question/top-kernels": 1, f"/question/top-kernels?job={quote(JOB)}&limit=5": 1},
    "/causes": {"/causes": 0},
    "/cause/{name}": {"/cause/host_stall": 0},
    "/alert/{name}": {"/alert/none": 0},
    "/static/{name}": {"/static/live.js": 0},
    "/healthz": {"/healthz": 0},
}


@pytest.fixture
def counted(monkeypatch):
    """Queries of the pages' database by the number of the tick; 0: outside of any."""
    counts, lock, tick = Counter(), threading.Lock(), [0]
    begin_tick = views.Reading.begin_tick

    def begin(self):
        tick[0] += 1
        begin_tick(self)

    monkeypatch.setattr(views.Reading, "begin_tick", begin)
    for name in ("query", "text"):

        def counting(self, *arguments, method=getattr(app.Database, name)):
            with lock:
                counts[tick[0]] += 1
            return method(self, *arguments)

        monkeypatch.setattr(app.Database, name, counting)
    return counts


def test_every_view_has_few_queries_a_tick_and_one_set_for_all_tabs(clean_stack, counted):
    migrated_database.create(clean_stack)
    store(clean_stack)
    pages = application(clean_stack)
    routes = {route.path for route in pages._app.routes if isinstance(route, Route)}
    assert routes == VIEWS.keys()  # a further view is counted here too

    async def request_pages(path, tabs):
        return {answer.status for answer in await asyncio.gather(*(get(pages, path) for _ in range(tabs)))}

    async def main():
        for path, most_ticks in (item for paths in VIEWS.values() for item in paths.items()):
            counted.clear()
            [status] = await request_pages(path, tabs=20)
            assert status in (200, 404)
            assert counted[0] == 0, f"{path} queries outside of ticks"
            assert len(+counted) <= most_ticks, (path, counted)
            assert max(counted.values(), default=0) <= MOST_QUERIES, (path, counted)
            once = counted.total()
            await request_pages(path, tabs=20)
            assert counted.total() == once, f"{path} is not shared"

    asyncio.run(main())
