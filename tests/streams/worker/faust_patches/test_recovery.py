"""Recovery loses records by Faust's own consumer and queue, unless it is guarded. No broker."""

import asyncio
from types import SimpleNamespace

import faust
import pytest
from faust.types import TP

from drumline.streams.worker.faust_patches.recovery import guard_recovery

PLACE = TP("s-changelog", 0)


@pytest.fixture
def app(tmp_path):
    app = faust.App("guarded", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)

    async def holds_all():
        return True

    async def guard():  # Faust's queues belong to a running loop
        guard_recovery(app, lambda tp: False, holds_all, lambda *_: None)

    asyncio.run(guard())
    return app


class Client:
    """aiokafka's consumer. A fetch was under way when the flow was stopped, and returns records 30 and 31."""

    _closed = False

    def __init__(self, consumer):
        self.sought, self.consumer = {}, consumer
        self._fetcher = self
        self._subscriptions = SimpleNamespace(fetch_context=lambda: self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    async def fetched_records(self, *_, **__):
        self.consumer.stop_flow()
        return {PLACE: [SimpleNamespace(offset=30), SimpleNamespace(offset=31)]}

    def assignment(self):
        return {PLACE}

    def seek(self, partition, offset):
        self.sought[partition] = offset


def test_the_thread_that_fetches_seeks(app, monkeypatch):
    """A seek of the other thread may set a position that is being reset, which ends all fetching."""
    thread, calls = app.consumer._thread, []

    async def call_thread(method, *arguments):
        calls.append("in the thread")
        return method(*arguments)

    monkeypatch.setattr(thread, "call_thread", call_thread)
    monkeypatch.setattr(thread, "seek", lambda *place: calls.append(place))
    asyncio.run(app.consumer._seek(PLACE, 7))
    assert calls == ["in the thread", (PLACE, 7)]


def test_what_a_fetch_took_before_the_flow_was_stopped_is_read_again(app):
    """Faust drops it, and nobody goes back: recovery would wait for ever for the end of a changelog."""
    client = Client(app.consumer)
    app.consumer.resume_flow()
    assert asyncio.run(app.consumer._thread._fetch_records(client, set(), timeout=1.0)) == {}
    assert client.sought == {PLACE: 30}


def test_recovery_gets_nothing_of_an_older_rebalance(app):
    """A record that waited for room in the queue is not the next one of its changelog."""
    app.consumer_generation_id = 5

    async def two():
        queue = app.tables.changelog_queue
        for generation, offset in (4, 99), (5, 50), (5, 51):
            queue.put_nowait(SimpleNamespace(message=SimpleNamespace(generation_id=generation, offset=offset)))
        return [(await queue.get()).message.offset for _ in range(2)]

    app.flow_control.resume()
    assert asyncio.run(two()) == [50, 51]
