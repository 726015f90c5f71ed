"""A full buffer must not put the worker to sleep, and its end is noticed. These fail too when Faust has changed."""

import asyncio
from types import SimpleNamespace

import faust
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from faust.types import TP

from drumline.infra.config.settings import Settings
from drumline.streams.worker.faust_config import faust_settings
from drumline.streams.worker.faust_patches.fetch import (
    GATHER_BYTES,
    GATHER_MS,
    HELD_S,
    LEFT_OUT_BYTES,
    LEFT_OUT_MS,
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


def test_a_broker_gathers_records_unless_partitions_are_left_out(consumer, monkeypatch):
    async def fetched(active_partitions, timeout):
        return {}

    monkeypatch.setattr(consumer._thread, "getmany", fetched)

    async def bounds():
        client = consumer._thread._consumer = consumer._thread._create_consumer(asyncio.get_running_loop())
        await consumer._getmany(None, 1.0)  # it has not started
        fetcher = client._fetcher = Fetcher(client._client, client._subscription)
        await consumer._getmany(None, 1.0)
        yield requested(fetcher)
        consumer.on_buffer_full(TP("busy", 0))
        await consumer._getmany(None, 1.0)
        yield requested(fetcher)
        consumer.on_buffer_drop(TP("busy", 0))
        await consumer._getmany(None, 1.0)
        yield requested(fetcher)
        fetcher._fetch_task.cancel()
        client._closed = True  # it never connected

    def requested(fetcher):
        """The wait and the size of the request that aiokafka would send for a partition."""
        assignment = SimpleNamespace(tps=[TopicPartition("idle", 0)], state_value=lambda tp: position)
        position = SimpleNamespace(has_valid_position=True, paused=False, position=0)
        fetcher._select_read_replica = lambda tp: 1
        [(_, request)] = fetcher._get_actions_per_node(assignment)[0]
        return request._max_wait_ms, request._min_bytes

    async def loop():
        return [pair async for pair in bounds()]

    gathered, left_out = (GATHER_MS, GATHER_BYTES), (LEFT_OUT_MS, LEFT_OUT_BYTES)
    assert asyncio.run(loop()) == [gathered, left_out, gathered]


def test_the_records_of_one_partition_end_the_wait_for_more(tmp_path):
    options = faust_settings(Settings(), tmp_path, 1)
    assert options["consumer_max_fetch_size"] / 2 >= GATHER_BYTES


def test_the_first_answer_of_a_broker_without_news_comes_soon(consumer):
    async def create():
        return consumer._thread._create_consumer(asyncio.get_running_loop())

    assert asyncio.run(create())._fetch_max_wait_ms == LEFT_OUT_MS


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
