"""Worker processes and topics for the tests of the streams; not a test itself."""

import json
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.wait_limit import WAIT_S

from drumline.infra.kafka.config import client_config, producer_config
from drumline.infra.kafka.topic_admin import TopicsAdmin, declared_topics, plan
from drumline.schemas.codec import Codec

TESTS = Path(__file__).parents[2]


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def apply_topics(settings):
    """Create topics as `drumline topics apply` does."""
    admin, topics = TopicsAdmin(settings), declared_topics(settings)
    steps = admin.apply(topics, plan(topics, admin.existing([topic.name for topic in topics])))
    assert not [step for step in steps if step.action == "error"]


class Child:
    """A worker process; `lines` are the JSON objects it prints, `log` the path of everything it wrote to stderr."""

    def __init__(self, environment, data, command, instance=""):
        name = unique(instance or "worker")
        environment = {
            **environment,
            "DRUMLINE_STREAM__DATA_DIR": str(data),
            "DRUMLINE_INSTANCE": instance,
        }
        data.mkdir(exist_ok=True, parents=True)
        self.log = data / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))

    def wait_for(self, wanted, timeout_s=WAIT_S):
        """The first printed object for which `wanted` is true."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"worker did not report in {timeout_s} s:\n{self.log.read_text()[-3000:]}"
                ) from None
            if wanted(line):
                return line

    def state(self):
        """The end of its log, and whether it runs; a probe adds what it waits for."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(5)
        return f"exit {self.process.poll()}:\n{self.log.read_text()[-8000:]}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=WAIT_S):
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)


def publish(stack, batches, key):
    """Send batches in order and wait for the broker to have them."""
    producer = Producer(producer_config(stack, "test"))
    for batch in batches:
        producer.produce(str(batch.topic), key=key(batch), value=Codec().encode(batch))
        producer.poll(0)
    assert producer.flush(30) == 0


class Reader:
    """Everything in a topic from now on (or from its beginning), decoded."""

    def __init__(self, stack, topic, *, beginning=False):
        config = {**client_config(stack, "test"), "group.id": unique("reader"), "enable.auto.commit": False}
        config["log_level"] = 0
        self.consumer, self.topic = Consumer(config), str(topic)
        numbers = self.consumer.list_topics(self.topic, timeout=60).topics[self.topic].partitions
        parts = []
        for number in numbers:
            low, high = self._ends(number)
            parts.append(TopicPartition(self.topic, number, low if beginning else high))
        self.consumer.assign(parts)
        self.batches = []

    def _ends(self, number):
        """A topic made a moment ago may have no leader yet."""
        for _ in range(50):
            try:
                return self.consumer.get_watermark_offsets(TopicPartition(self.topic, number), timeout=60)
            except KafkaException:
                time.sleep(0.2)
        raise AssertionError(f"{self.topic} has no leader")

    def end(self):
        """Return the number of records that were ever written to the topic."""
        numbers = self.consumer.list_topics(self.topic, timeout=60).topics[self.topic].partitions
        return sum(self._ends(number)[1] for number in numbers)

    def until(self, done, timeout_s=WAIT_S, progress=None):
        """Read until done(self.batches); the batches. Fails when nothing has gone on for so long.

        `progress`: returns a value; time starts again whenever it changes, or a batch comes.
        """
        deadline, before = time.monotonic() + timeout_s, None
        while not done(self.batches):
            if (now := (len(self.batches), progress and progress())) != before:
                deadline, before = time.monotonic() + timeout_s, now
            assert time.monotonic() < deadline, f"{len(self.batches)} batches of {self.topic} in {timeout_s} s"
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.batches.append(Codec().decode(self.topic, message.value()))
        return self.batches

    def raw(self, declared_topics, timeout_s=WAIT_S):
        """The headers of the first message for which `wanted` is true."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            message = self.consumer.poll(0.2)
            if message is not None and message.error() is None and declared_topics(message):
                return dict(message.headers())
        raise AssertionError(f"nothing of the kind in {self.topic}")

    def everything(self):
        """All that is in the topic by now."""
        left = {}
        for part in self.consumer.assignment():
            low, high = self.consumer.get_watermark_offsets(part, timeout=60)
            if high > low:
                left[part.partition] = high
        while left:
            message = self.consumer.poll(1.0)
            if message is None or message.error() is not None:
                continue
            self.batches.append(Codec().decode(self.topic, message.value()))
            if message.offset() + 1 >= left.get(message.partition(), 1 << 62):
                left.pop(message.partition(), None)
        self.consumer.close()
        return self.batches

    def close(self):
        self.consumer.close()


PYTHON = sys.executable
