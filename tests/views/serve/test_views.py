"""Tabs share a page: its queries are those of one tab, in ticks of a few, within a share of a core."""

import asyncio
import threading
import time

import pytest
from starlette.responses import PlainTextResponse

from drumline.views.serve import views
from drumline.views.serve.reading import MOST_QUERIES, Reading, TickOver
from drumline.views.serve.views import Views


class Counted:
    """Answers each query with its number; `took_s`: time of one."""

    def __init__(self, took_s=0.0):
        self.queries, self._took_s, self._lock = 0, took_s, threading.Lock()

    def query(self, sql, parameters):
        time.sleep(self._took_s)
        with self._lock:
            self.queries += 1
            return [{"n": self.queries}]


def page_of(count):
    """A page of so many queries, which shows the answer of its first."""

    def load(source):
        rows = [source.query(f"SELECT {number}", {})[0] for number in range(count)]
        return PlainTextResponse(str(rows[0]["n"]))

    return load


def test_any_page_has_few_queries_a_tick_and_asks_nothing_twice():
    source = Counted()
    reading, load, counts = Reading(source), page_of(20), []
    for _ in range(3):
        reading.begin_tick()
        with pytest.raises(TickOver):
            load(reading)
        counts.append(source.queries)
    reading.begin_tick()
    assert load(reading).body == b"1"
    assert [*counts, source.queries] == [MOST_QUERIES, 2 * MOST_QUERIES, 3 * MOST_QUERIES, 20]


def test_hundreds_of_tabs_are_the_queries_of_one():
    async def main():
        source = Counted(0.01)
        shared = Views(source)
        answers = await asyncio.gather(*(shared.answer("/job/a", page_of(5)) for _ in range(500)))
        assert {answer.body for answer in answers} == {b"1"}
        assert source.queries == 5
        await shared.answer("/job/b", page_of(5))
        assert source.queries == 10

    asyncio.run(main())


def test_pages_opened_together_are_answered_one_after_another():
    async def main():
        source, queries_before = Counted(0.002), []
        shared = Views(source)

        async def opened(number):
            await shared.answer(f"/job/{number}", page_of(20))
            queries_before.append(source.queries)

        await asyncio.gather(*(opened(number) for number in range(10)))
        assert min(queries_before) <= 20 * views.FIRST_LOADS + MOST_QUERIES < max(queries_before)

    asyncio.run(main())


def test_pages_leave_out_what_costs_most_only_while_other_tabs_wait_and_are_loaded_again_at_once():
    def page(source):
        time.sleep(0.02)
        return PlainTextResponse("short" if source.hurries() else "whole")

    async def main():
        shared = Views(Counted())
        addresses = [f"/job/{number}" for number in range(views.FIRST_LOADS + 1)]
        first = await asyncio.gather(*(shared.answer(address, page) for address in addresses))
        assert [answer.body for answer in first] == [b"whole"] * views.FIRST_LOADS + [b"short"]
        assert (await shared.answer(addresses[-1], page)).body == b"whole"

    asyncio.run(main())


def test_a_page_is_loaded_again_after_a_tick_and_tabs_see_that_at_once_where_it_is_quick(monkeypatch):
    monkeypatch.setattr(views, "TICK_S", 0.05)

    async def main():
        shared = Views(Counted())
        assert (await shared.answer("/", page_of(1))).body == b"1"
        await asyncio.sleep(0.1)
        assert (await shared.answer("/", page_of(1))).body == b"2"

    asyncio.run(main())


def test_a_slow_page_is_shown_as_it_was_without_a_wait(monkeypatch):
    monkeypatch.setattr(views, "TICK_S", 0.05)
    monkeypatch.setattr(views, "NEWER_TIMEOUT_S", 0.1)

    async def main():
        source = Counted(0.2)
        shared = Views(source)
        await shared.answer("/", page_of(4))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert (await shared.answer("/", page_of(4))).body == b"1"
        assert time.monotonic() - began < 0.7
        while (await shared.answer("/", page_of(4))).body == b"1":
            await asyncio.sleep(0.05)
        assert source.queries >= 8

    asyncio.run(main())


def test_pages_are_loaded_again_within_their_share_of_a_core(monkeypatch):
    monkeypatch.setattr(views, "TICK_S", 0.01)
    monkeypatch.setattr(views, "NEWER_TIMEOUT_S", 0.01)

    async def main():
        source = Counted(0.01)
        shared = Views(source)
        await asyncio.gather(*(shared.answer(f"/{number}", page_of(1)) for number in range(20)))
        first, began = source.queries, time.monotonic()
        while time.monotonic() - began < 3:
            await asyncio.gather(*(shared.answer(f"/{number}", page_of(1)) for number in range(20)))
            await asyncio.sleep(0.01)
        assert 0 < (source.queries - first) * 0.01 <= 3 * views.CORE_SHARE

    asyncio.run(main())


def test_a_page_that_cannot_be_loaded_is_an_error_for_those_who_wait_and_is_tried_again():
    def broken(_):
        raise ValueError("no")

    async def main():
        shared = Views(Counted())
        answers = await asyncio.gather(*(shared.answer("/", broken) for _ in range(3)), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["no"] * 3
        assert (await shared.answer("/", page_of(1))).body == b"1"

    asyncio.run(main())


def test_few_pages_are_kept(monkeypatch):
    monkeypatch.setattr(views, "MOST_VIEWS", 3)

    async def main():
        source = Counted()
        shared = Views(source)
        for number in (0, 1, 2, 0, 3):
            await shared.answer(f"/{number}", page_of(1))
        assert source.queries == 4
        await shared.answer("/1", page_of(1))
        assert source.queries == 5

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, MOST_QUERIES, MOST_QUERIES + 1, 40])
def test_the_first_load_of_a_page_does_not_wait_for_ticks(count):
    async def main():
        began = time.monotonic()
        assert (await Views(Counted()).answer("/", page_of(count))).body == b"1"
        assert time.monotonic() - began < views.TICK_S

    asyncio.run(main())
