"""A full buffer must not put the worker to sleep, and its end is noticed. These fail too when Faust has changed."""

import asyncio

import faust
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.types import TP

from drumline.streams.worker.faust_patches.fetch import (
    FETCH_WAIT_MS,
    FEW,
    GATHER_S,
    HELD_S,
    end_of_fetching,
    limit_fetch_delay,
)


def bounded_consumer(folder):
    app = faust.App("bounded", broker="kafka://127.0.0.1:1", datadir=str(folder), autodiscover=False)
    limit_fetch_delay(app)
    return app.consumer


@pytest.fixture
def consumer(tmp_path):
    return bounded_consumer(tmp_path)


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


@pytest.mark.parametrize(("records", "pauses"), [(0, []), (1, [GATHER_S]), (FEW, [])])
def test_after_few_records_more_are_waited_for(consumer, monkeypatch, records, pauses):
    waited, sleep = [], asyncio.sleep

    async def fetched(active_partitions, timeout):
        return {TP("busy", 0): [object()] * records}

    async def pass_time(seconds):
        waited.append(seconds)
        await sleep(0)

    monkeypatch.setattr(consumer._thread, "getmany", fetched)
    monkeypatch.setattr(asyncio, "sleep", pass_time)

    async def loop():
        for _ in range(2):
            await consumer._getmany(None, 1.0)

    asyncio.run(loop())
    assert [seconds for seconds in waited if seconds] == pauses


def test_a_broker_without_news_answers_soon(consumer):
    async def create():
        return consumer._thread._create_consumer(asyncio.get_running_loop())

    assert asyncio.run(create())._fetch_max_wait_ms == FETCH_WAIT_MS


@pytest.mark.parametrize("ends", ["", "cancelled", "fetching", "joining"])
def test_the_end_of_fetching_is_noticed_though_nothing_reports_it(tmp_path, monkeypatch, ends):
    """The real fetchers, while no broker answers."""

    async def fetch():
        loop, consumer = asyncio.get_running_loop(), bounded_consumer(tmp_path)
        app = consumer.app
        assert end_of_fetching(app) == "", "it has not started"
        client = consumer._thread._consumer = consumer._thread._create_consumer(loop)
        assert end_of_fetching(app) == "", "nor has its client"
        client._fetcher = Fetcher(client._client, client._subscription)
        client._coordinator = GroupCoordinator(client._client, client._subscription)
        await app._fetcher.start()
        await let_tasks_run()
        assert end_of_fetching(app) == ""
        if ends == "cancelled":
            for task in app._fetcher._futures:
                task.cancel()
        elif ends == "fetching":
            monkeypatch.setattr(client._fetcher, "_get_actions_per_node", fail)
            client._subscription.subscribe({"a"})
            client._subscription.assign_from_subscribed([TopicPartition("a", 0)])
        elif ends == "joining":
            monkeypatch.setattr(client._coordinator, "ensure_coordinator_known", fail)
            client._subscription.subscribe({"a"})
        await let_tasks_run()
        result = end_of_fetching(app)
        ended = {client._fetcher.error_future, client._coordinator._coordination_task}
        tasks = ended | asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client._closed = True  # it never connected
        return result

    async def let_tasks_run():
        for _ in range(100):
            await asyncio.sleep(0)

    def fail(*_):
        raise AssertionError("as aiokafka's own")

    reason = {"": "", "cancelled": "Faust's fetcher", "fetching": "_fetch_requests_routine, KafkaError",
              "joining": "_coordination_routine, KafkaError"}[ends]  # fmt: skip
    answer = asyncio.run(fetch())
    assert bool(reason) == bool(answer)
    assert reason in answer
