"""Messages are delivered at once where nothing holds them back, and as Faust does it where something does."""

import asyncio
from types import SimpleNamespace

import faust
import pytest
from faust.types.tuples import TP, ConsumerMessage

from drumline.streams.worker.faust_patches.delivery import bytes_topic, deliver_at_once


class Consumer:
    """Waits as Faust's: for the first of several."""

    def __init__(self):
        self.suspend_flow, self._stopped, self._crashed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tasks = []

    async def wait_first(self, *waited, timeout=None):
        self.tasks = [asyncio.ensure_future(event) for event in waited]
        done, pending = await asyncio.wait(self.tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        return [task.result() for task in done]


def run(test):
    async def begin():
        consumer = Consumer()
        producer = SimpleNamespace(buffer=SimpleNamespace(wait_until_ebb=None))
        deliver_at_once(SimpleNamespace(consumer=consumer, producer=producer))
        await asyncio.wait_for(test(consumer), 30)

    asyncio.run(begin())


def test_a_message_is_delivered_without_a_task():
    delivered = []

    async def test(consumer):
        async def deliver():
            delivered.append(1)

        await consumer.wait_first(deliver(), consumer.suspend_flow.wait())
        assert (delivered, consumer.tasks) == ([1], [])

    run(test)


def test_a_delivery_that_waits_goes_on_where_it_was():
    async def test(consumer):
        is_free, steps = asyncio.Event(), []

        async def deliver():
            steps.append("begun")
            await is_free.wait()
            await asyncio.sleep(0)
            steps.append("delivered")

        waiting = asyncio.ensure_future(consumer.wait_first(deliver(), consumer.suspend_flow.wait()))
        await asyncio.sleep(0)
        assert (steps, waiting.done()) == (["begun"], False)
        is_free.set()
        await waiting
        assert steps == ["begun", "delivered"]

    run(test)


def test_partitions_that_move_end_a_delivery_that_waits():
    async def test(consumer):
        ended = []

        async def deliver():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        waiting = asyncio.ensure_future(consumer.wait_first(deliver(), consumer.suspend_flow.wait()))
        await asyncio.sleep(0)
        consumer.suspend_flow.set()
        await waiting
        await asyncio.gather(*consumer.tasks, return_exceptions=True)
        assert ended == ["cancelled"]

    run(test)


@pytest.mark.parametrize("held", ["suspend_flow", "_stopped", "_crashed"])
def test_what_is_held_is_faust_s_own(held):
    async def test(consumer):
        async def deliver():
            await asyncio.sleep(0)

        getattr(consumer, held).set()
        await consumer.wait_first(deliver(), consumer.suspend_flow.wait())
        assert len(consumer.tasks) == 2

    run(test)


def test_an_error_of_a_delivery_is_raised():
    async def test(consumer):
        async def fail(later):
            if later:
                await asyncio.sleep(0)
            raise ValueError("no such partition")

        for later in (False, True):
            with pytest.raises(ValueError, match="no such partition"):
                await consumer.wait_first(fail(later), consumer.suspend_flow.wait())

    run(test)


def test_other_waits_are_as_they_were():
    async def test(consumer):
        await consumer.wait_first(asyncio.Event().wait(), timeout=0.01)
        assert len(consumer.tasks) == 1

    run(test)


def test_a_delivery_waits_where_the_producer_is_behind_as_faust_counts_it(tmp_path):
    waited = []

    async def begin():
        app = faust.App("behind", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
        unsent = app.producer.buffer

        async def wait():
            waited.append(unsent.size)

        unsent.max_messages, unsent.wait_until_ebb = 2, wait
        deliver_at_once(app)
        for _ in range(4):
            await unsent.wait_until_ebb()
            unsent.put(object())
        assert (waited, unsent.size) == ([3], 4)

    asyncio.run(begin())


@pytest.mark.parametrize("headers", [None, [], [("epoch", b"7")]])
@pytest.mark.parametrize(("key", "value"), [(b"k", b"\xff\0"), (None, b""), (b"", None)])
def test_agents_get_the_bytes_of_a_message_as_from_faust(tmp_path, key, value, headers):
    app = faust.App("bytes", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
    place = TP("t", 0)
    message = ConsumerMessage(*place, 5, 1.0, 0, headers, key, value, None, tp=place)
    options = {"key_serializer": "raw", "value_serializer": "raw", "allow_empty": True}
    topics = bytes_topic(app, "t"), app.topic("t", key_type=bytes, value_type=bytes, **options)
    event, other = [asyncio.run(topic.clone(is_iterator=True).decode(message, propagate=True)) for topic in topics]
    assert type(event) is type(other)
    names = ("app", "key", "value", "headers", "message", "acked")
    assert [getattr(event, name) for name in names] == [getattr(other, name) for name in names]


@pytest.mark.parametrize(("buffered", "size"), [(None, 7), (200, 200)])
def test_the_buffer_of_a_topic_is_as_large_as_it_should_be(tmp_path, buffered, size):
    options = {"broker": "kafka://127.0.0.1:1", "autodiscover": False, "stream_buffer_maxsize": 7}
    app = faust.App("buffers", datadir=str(tmp_path), **options)

    async def agent(stream):
        """Reads nothing."""

    async def begin():
        stream = app.agent(bytes_topic(app, "t", buffered), name="agent")(agent).stream()
        assert stream.channel.queue.maxsize == size

    asyncio.run(begin())


def test_no_task_is_made_for_a_message_by_faust_s_own_consumer(tmp_path):
    tasks, delivered = [], []

    def factory(loop, coroutine, **options):
        tasks.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **options)

    async def deliver():
        delivered.append(1)

    async def begin():
        app = faust.App("tasks", broker="kafka://127.0.0.1:1", datadir=str(tmp_path), autodiscover=False)
        deliver_at_once(app)
        app.consumer.resume_flow()
        asyncio.get_running_loop().set_task_factory(factory)
        await app.consumer.wait_first(deliver(), app.consumer.suspend_flow.wait())
        assert (delivered, tasks) == ([1], [])

    asyncio.run(begin())
