"""A topic that is deleted under a running sink and created again: it is read again, and the sink is not ready until."""

import threading
import time

import pytest
from confluent_kafka.admin import AdminClient
from support.labs.sink import Pipeline, any_batch, process_id

from drumline.schemas.topics import Topic

pytestmark = [pytest.mark.stack, pytest.mark.long]


@pytest.fixture
def pipeline(clean_stack, environment_of):
    created = Pipeline(clean_stack, environment_of(clean_stack))
    yield created
    created.stop()


def wait_until(condition, timeout_s=60.0):
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_topic_that_was_missing_when_the_sink_joined_again_is_taken_up(pipeline):
    stop = threading.Event()
    sink = pipeline.sink(lambda _: stop.is_set(), [Topic.KERNEL, Topic.STEP])
    thread = threading.Thread(target=sink.run)
    thread.start()
    try:
        held = lambda: {topic for topic, _ in list(sink.kafka.states)}  # noqa: E731
        wait_until(lambda: held() == {Topic.KERNEL, Topic.STEP})
        for i in range(40):
            pipeline.publish(any_batch(Topic.KERNEL, 2_000, process_id(0), i), again=True)
        admin = AdminClient({"bootstrap.servers": pipeline.settings.bootstrap})
        admin.delete_topics([Topic.KERNEL])[Topic.KERNEL].result(20)
        wait_until(lambda: held() == {Topic.STEP})
        wait_until(lambda: "gpu.kernel.v1 does not exist" in sink.health.ready().get("topics", ""))
        pipeline.create_topics()
        pipeline.publish(any_batch(Topic.KERNEL, 7, process_id(1), 0))
        rows = "SELECT count() AS n FROM {db}.kernels WHERE process_id = '" + process_id(1) + "'"
        wait_until(lambda: pipeline.query(rows)[0]["n"] == 7)
        wait_until(lambda: not sink.health.ready())
    finally:
        stop.set()
        thread.join()
