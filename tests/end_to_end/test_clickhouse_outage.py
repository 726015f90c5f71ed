"""ClickHouse full, overloaded, closed, hanging, slow, refusing: the sink waits or stops, and loses nothing."""

import threading
import time
from contextlib import contextmanager

import pytest
from support.fakes.tcp_proxy import Proxy
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.infra.clickhouse import client as clickhouse
from drumline.infra.config.local_credentials import local_password
from drumline.schemas.topics import Topic
from drumline.sinks import sink
from drumline.sinks.inserts.insert import RangeWriter
from drumline.sinks.kafka import end_offsets as ends

pytestmark = [pytest.mark.stack, pytest.mark.long]
ROWS = 100
TOPICS = [Topic.KERNEL, Topic.STEP]
RAW = [Topic.PROCESS, Topic.KERNEL, Topic.MEMCPY, Topic.COLLECTIVE, Topic.STEP, Topic.RANGE, Topic.DEVICE]


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    created.settings.sink.flush_s = 0.05
    yield created
    created.stop()


@pytest.fixture
def proxy(clean_stack):
    created = Proxy(clean_stack.local.clickhouse_http_port)
    yield created
    created.close()


def batches(count, first, topic=Topic.KERNEL):
    return [any_batch(topic, ROWS, process_id(0), first + i) for i in range(count)]


def until(done, timeout_s=40.0):
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def through(pipeline, proxy):
    """A client as the sink's, by way of the proxy; it waits 2 s for an answer."""
    clickhouse_settings = pipeline.settings.clickhouse.model_copy(
        update={"url": f"http://127.0.0.1:{proxy.port}", "password": local_password(pipeline.settings, "writer")}
    )
    settings = pipeline.settings.model_copy(update={"clickhouse": clickhouse_settings})
    return lambda: clickhouse.connect(settings, timeout_s=2)


@contextmanager
def running(pipeline, proxy, topics):
    """A sink in a thread of its own."""
    stop = threading.Event()
    running_sink = pipeline.sink(lambda _: stop.is_set(), topics)
    running_sink.connect = through(pipeline, proxy)
    thread = threading.Thread(target=running_sink.run)
    thread.start()
    try:
        yield running_sink
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_the_sink_waits_until_clickhouse_can_again_collects_nothing_meanwhile_and_gives_the_reason(
    pipeline, proxy, monkeypatch
):
    monkeypatch.setattr(ends, "REQUEST_INTERVAL_S", 0.1)
    monkeypatch.setattr(sink, "OBSERVE_S", 0.05)
    client, kernels = pipeline.client(), f"{pipeline.settings.clickhouse.database}.kernels"

    def table_setting(text):
        client.command(f"ALTER TABLE {kernels} {text}")

    conditions = {
        ": code 243 (no space left on its disk)": (
            lambda: table_setting("MODIFY SETTING min_free_disk_bytes_to_perform_insert = 1000000000000000"),
            lambda: table_setting("RESET SETTING min_free_disk_bytes_to_perform_insert"),
        ),
        ": code 252 (too many parts, merges do not keep up)": (
            lambda: table_setting("MODIFY SETTING parts_to_delay_insert = 1, parts_to_throw_insert = 1"),
            lambda: table_setting("RESET SETTING parts_to_delay_insert, parts_to_throw_insert"),
        ),
        "clickhouse": (
            lambda: vars(proxy).update(closed=True),
            lambda: vars(proxy).update(closed=False),
        ),
        "clickhouse ": (
            lambda: vars(proxy).update(answer=b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"),
            lambda: vars(proxy).update(answer=b""),
        ),
        "clickhouse  ": (
            lambda: vars(proxy).update(delay_s=3.0),
            lambda: vars(proxy).update(delay_s=0.0),
        ),
    }
    with running(pipeline, proxy, TOPICS) as running_sink:
        for number, (reason, (breaks, repairs)) in enumerate(conditions.items()):
            first, before = 22 * number, running_sink.counts.retries
            pipeline.publish(*batches(1, first))
            until(lambda n=24 * number + 1: running_sink.counts.records == n)
            breaks()
            pipeline.publish(*batches(1, first + 1))
            until(lambda n=before: running_sink.counts.retries > n + 1)
            rejects = "code" in reason  # ClickHouse answers: only the table that cannot take rows waits
            part, end = ("rejected", f"{reason}; trying again") if rejects else ("retry", f": {reason.strip()}")
            until(lambda p=part, e=end: running_sink.health.ready().get(p, "").endswith(e))
            before_steps = running_sink.counts.records
            pipeline.publish(*batches(20, first + 2), *batches(2, 2 * number, Topic.STEP))
            until(lambda: running_sink.kafka.lag() >= 20)
            if rejects:
                until(lambda n=before_steps: running_sink.counts.records == n + 2)
            assert sum(state.rows for state in running_sink.kafka.states.values()) <= ROWS, "it collects while it waits"
            repairs()
            until(lambda n=24 * (number + 1): running_sink.counts.records == n)
            until(lambda p=part: p not in running_sink.health.ready())
    assert pipeline.drained()
    pipeline.assert_exactly_once()


def test_a_slow_clickhouse_keeps_no_sink_from_polling_kafka(pipeline, proxy, monkeypatch):
    """Kafka takes a member that does not poll for dead; it would never come further."""
    monkeypatch.setattr(sink, "ITERATION_S", 0.1)
    proxy.delay_s = 0.05
    for process in range(2):
        pipeline.publish(*(any_batch(topic, 1, process_id(process), 0, process) for topic in RAW))
    inserts, between = [0], []
    insert = RangeWriter.insert_rows

    def counted(self, pending):
        inserts[0] += 1
        return insert(self, pending)

    monkeypatch.setattr(RangeWriter, "insert_rows", counted)
    running_sink = pipeline.sink(lambda s: s.counts.records >= 2 * len(RAW), RAW)
    running_sink.connect, poll = through(pipeline, proxy), running_sink.kafka.poll

    def polled(timeout_s):
        between.append(inserts[0])
        inserts[0] = 0
        return poll(timeout_s)

    running_sink.kafka.poll = polled
    running_sink.run()
    assert sum(between) >= len(RAW)
    assert max(between) <= 3, "turns of 0.1 s, at least 0.05 s for each of two inserts a range"
    assert running_sink.counts.retries == 0
    pipeline.assert_exactly_once()


def test_a_clickhouse_that_refuses_stops_the_sink_and_nothing_is_lost(pipeline):
    client, database = pipeline.client(), pipeline.settings.clickhouse.database
    pipeline.publish(*batches(2, 0))
    pipeline.drain(2)
    pipeline.publish(*batches(3, 2))
    client.command(f"RENAME TABLE {database}.kernels TO {database}.elsewhere")
    with pytest.raises(clickhouse.PermanentError) as raised:
        pipeline.drain(5)
    assert raised.value.code == 60
    client.command(f"RENAME TABLE {database}.elsewhere TO {database}.kernels")
    without_grants = pipeline.sink(lambda s: s.counts.records >= 3)
    without_grants.connect = lambda: clickhouse.connect(pipeline.settings, reader=True)
    with pytest.raises(clickhouse.PermanentError):
        without_grants.run()
    assert pipeline.drain(3).counts.replays == 1, "the range whose intent was committed before it stopped"
    pipeline.assert_exactly_once()
