"""A full buffer must not put the worker to sleep. These fail too when Faust's insides have changed."""

import asyncio

import faust
import pytest
from faust.types import TP

from drumline.streams.worker.faust_patches.fetch import FETCH_WAIT_MS, HELD_S, limit_fetch_delay


@pytest.fixture
def consumer(tmp_path):
    app = faust.App("bounded", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
    limit_fetch_delay(app)
    return app.consumer


def timeouts(consumer, monkeypatch):
    """The timeouts that Kafka is asked with, for two rounds of Faust's own loop."""
    recorded = []

    async def fetched(active_partitions, timeout):
        recorded.append(timeout)
        return {}

    monkeypatch.setattr(consumer._thread, "getmany", fetched)

    async def loop():
        consumer.resume_flow()
        for _ in range(2):
            await consumer._wait_next_records(1.0)

    asyncio.run(loop())
    return recorded


def test_faust_asks_for_a_moment_only_while_it_leaves_full_partitions_out(consumer, monkeypatch):
    consumer._active_partitions = {TP("busy", 0), TP("idle", 0)}
    assert timeouts(consumer, monkeypatch) == [1.0, 1.0]
    consumer.on_buffer_full(TP("busy", 0))
    assert timeouts(consumer, monkeypatch) == [HELD_S, HELD_S]
    consumer.on_buffer_drop(TP("busy", 0))
    assert timeouts(consumer, monkeypatch) == [1.0, 1.0]


def test_a_broker_without_news_answers_soon(consumer):
    async def create():
        return consumer._thread._create_consumer(asyncio.get_running_loop())

    assert asyncio.run(create())._fetch_max_wait_ms == FETCH_WAIT_MS
