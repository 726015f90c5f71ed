"""Results of a worker: published within the bounds of the contract, or not at all."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from structlog.testing import capture_logs

from drumline.infra.telemetry import metrics
from drumline.schemas.batch import Batch
from drumline.schemas.codec import Codec
from drumline.schemas.epochs import write_epoch
from drumline.schemas.errors import BadFrame, OutOfBounds
from drumline.schemas.topics import Topic, dlq
from drumline.streams.worker.output import OutputProducer


def sent(batch):
    return produced(lambda output: output.send(batch, write_epoch(1)))


def produced(send):
    """Return (topic, partition) of what reached the producer."""
    places = []

    async def record(topic, key, value, partition, *_):
        places.append((topic, partition))
        return asyncio.sleep(0)

    async def run():
        app = SimpleNamespace(producer=SimpleNamespace(send=record), conf=SimpleNamespace(id="app"))
        await (await send(OutputProducer(app, Codec())))
        return places

    return asyncio.run(run())


def lateness(wait_ns):
    columns = {"step": [3], "wait_ns": np.array([wait_ns])}
    names = {"hosts": ["h"], "gpu_uuids": ["g"], "operations": ["AllReduce"]}
    return Batch(Topic.LATENESS, {"job": "j", "run": "r", "rows": 1, **names}, columns)


def test_a_result_within_its_bounds_is_published():
    assert [topic for topic, _ in sent(lateness(5))] == [Topic.LATENESS]


def test_a_sum_that_wrapped_is_not_published():
    with pytest.raises(OutOfBounds, match=r"gpu.lateness.v1.wait_ns: a sum below 0"):
        sent(lateness(-5))


def test_a_record_without_key_and_value_becomes_a_dead_letter_that_kafkas_client_sends():
    """Attack: aiokafka asserts on such a record, and the worker ended at it, also after each restart."""
    keys = []

    async def send(topic, key, value, *_):
        assert not (key is None and value is None)
        keys.append((topic, key, value))

    async def run():
        app = SimpleNamespace(producer=SimpleNamespace(send=send), conf=SimpleNamespace(id="app"))
        for key in (None, b"k"):
            message = SimpleNamespace(topic=Topic.KERNEL, partition=0, offset=7, key=key, value=None, headers=None)
            await OutputProducer(app, Codec()).send_dead_letter(message, BadFrame("no value", topic=Topic.KERNEL))

    asyncio.run(run())
    assert keys == [(dlq(Topic.KERNEL), b"", None), (dlq(Topic.KERNEL), b"k", None)]


def test_the_key_of_a_dead_letter_is_not_hashed():
    """In Python a key of 1 MB takes 0.2 s, in which the worker reads nothing of any partition."""
    message = SimpleNamespace(topic=Topic.STEP, partition=3, offset=7, key=b"k" * 10**6, value=b"", headers=())
    places = produced(lambda output: output.send_dead_letter(message, OutOfBounds("too long", topic=Topic.STEP)))
    assert places == [("gpu.step.v1.dlq", 0)]


def test_a_flood_of_dead_letters_is_one_line_a_minute_and_kind():
    now_s, counted = [1_000.0], metrics.STREAM_DEAD_LETTERS.labels(Topic.KERNEL, "BadFrame")
    before = counted._value.get()

    async def send(*_):
        return asyncio.sleep(0)

    async def run():
        app = SimpleNamespace(producer=SimpleNamespace(send=send), conf=SimpleNamespace(id="app"))
        worker = OutputProducer(app, Codec(), lambda: now_s[0])
        for offset, error in enumerate([BadFrame] * 500 + [OutOfBounds] + [BadFrame]):
            now_s[0] += 60 if offset == 501 else 0.01
            message = SimpleNamespace(topic=Topic.KERNEL, partition=0, offset=offset, key=b"", value=b"", headers=None)
            await (await worker.send_dead_letter(message, error("wrong", topic=Topic.KERNEL)))

    with capture_logs() as lines:
        asyncio.run(run())
    assert [(line["offset"], line["more_like_it_before"]) for line in lines] == [(0, 0), (500, 0), (501, 499)]
    assert counted._value.get() == before + 501
