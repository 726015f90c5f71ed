"""A spool with batches of made processes and an agent that publishes it to a fake or real broker."""

import time
from collections import deque

from confluent_kafka import KafkaError, KafkaException
from support.labs.sink import any_batch
from support.tables import parts_of

from drumline.infra.config.agent_settings import AgentSettings
from drumline.infra.config.settings import Settings, SpoolSettings
from drumline.infra.telemetry.health import Health
from drumline.producers.agent.agent import Agent, AgentOptions
from drumline.producers.agent.cursor import Cursor
from drumline.producers.agent.producer import KafkaSender
from drumline.schemas.batch import encode
from drumline.schemas.codec import Codec
from drumline.schemas.model import model
from drumline.schemas.topics import RAW_TOPICS, Topic

TOPIC_NAMES = [str(topic) for topic in RAW_TOPICS]
#: The clock's time at 0 s, where it is the time of day.
BEGIN_NS = time.time_ns()


class FakeKafka:
    """`reject`: topic, value -> error code or None. `capacity`: messages its queue takes. `held`: answers nothing."""

    def __init__(self):
        self.capacity, self.held, self.topics = 1_000_000, False, list(TOPIC_NAMES)
        self.reject = lambda topic, value: None
        self.queue, self.log, self.headers = deque(), [], {}
        self.clients = 0

    def __call__(self, _settings, on_error):
        self.on_error, self.clients = on_error, self.clients + 1
        return self

    def list_topics(self, timeout):
        if self.topics is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return type("Metadata", (), {"topics": dict.fromkeys(self.topics), "brokers": {}})

    def produce(self, topic, value, key, on_delivery, headers=()):
        if len(self.queue) >= self.capacity:
            raise BufferError
        if headers:
            self.headers[topic, value] = headers
        self.queue.append((topic, key.decode(), value, on_delivery))

    def poll(self, timeout):
        while self.queue and not self.held:
            topic, key, value, answer = self.queue.popleft()
            code = self.reject(topic, value)
            if code is None:
                self.log.append((topic, key, value))
            answer(KafkaError(code) if code is not None else None, None)
        return 0

    def flush(self, timeout):
        self.poll(0)
        return len(self.queue)

    def purge(self):
        while self.queue:
            self.queue.popleft()[3](KafkaError(KafkaError._PURGE_QUEUE), None)


class Lab:
    """One spool root, one fake Kafka, agents one after the other."""

    def __init__(self, root, make_kept=None):
        """`make_kept(settings, clock)`: what takes the rows that stay on the host."""
        self.make_kept = make_kept
        self.root, self.kafka, self.now, self.codec = root, FakeKafka(), 0.0, Codec()
        self.settings = Settings(
            spool=SpoolSettings(root=root),
            agent=AgentSettings(kept_folder=root.with_name(f"{root.name}-kept") if make_kept else None),
        )
        self.health = Health()
        self.agent = None

    def start(self, codec=None):
        if self.agent is not None:
            self.cursor.close()  # killed: nothing else is done
            if self.kept is not None:
                self.kept.folder.close()
        self.cursor = Cursor(self.root)
        make = self.make_kept
        self.kept = make(self.settings, lambda: BEGIN_NS + round(self.now * 1e9)) if make else None
        sender = KafkaSender(self.settings, TOPIC_NAMES, self.kafka, clock=lambda: self.now)
        self.agent = Agent(self.settings, self.cursor, sender, codec or self.codec, self.health,
                           AgentOptions(clock=lambda: self.now, kept=self.kept, flush_s=0))  # fmt: skip
        self.sender = sender
        return self

    def tick(self, seconds=3.0):
        """Time passes and all that can move moves."""
        self.now += seconds
        for _ in range(4):
            while self.agent.tick():
                self.sender.poll(0)
            self.sender.poll(0)
            self.now += 1.1

    def batches(self, topic=Topic.KERNEL):
        """Of all records, and of the parts of those that have them."""
        batches = []
        for value in (value for t, _, value in self.kafka.log if t == topic):
            parts = parts_of(self.codec, topic, value)
            of = [value] if parts is None else parts.values
            batches += [self.codec.decode(topic, part, of=parts) for part in of]
        return batches

    def account(self, topic=Topic.KERNEL):
        """(sequences, rows, lost rows)"""
        envelopes = [batch.envelope for batch in self.batches(topic)]
        return (
            [e["sequence"] for e in envelopes],
            sum(e["rows"] for e in envelopes),
            sum(e["dropped_before"] for e in envelopes),
        )


def process(name="p0", **more):
    return {**any_batch(Topic.PROCESS, 1, name, 0).envelope, "labels": {}, "versions": {}, **more}


def write(spool, sequences, rows=10, topic=Topic.KERNEL, key="p0", **envelope):
    for sequence in sequences:
        batch = any_batch(topic, rows, "p0", sequence)
        batch.envelope.update(envelope)
        assert spool.append(str(topic), key, encode(model(topic), batch), rows)
