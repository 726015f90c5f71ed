"""A Kafka consumer that follows topics without a group, for tests of what is assigned to it."""

from confluent_kafka import KafkaError, KafkaException


class Topics(dict):
    """The answer to `list_topics`."""

    @property
    def topics(self):
        return self


class FakeMessage:
    """A record of partition 0. `at_ms`: the broker's time."""

    def __init__(self, topic, key, value, at_ms):
        self._topic, self._key, self._value, self._at_ms = topic, key, value, at_ms

    def error(self):
        return None

    def topic(self):
        return self._topic

    def partition(self):
        return 0

    def key(self):
        return self._key

    def value(self):
        return self._value

    def timestamp(self):
        return 2, self._at_ms


class FakeConsumer:
    """`listed`: topic -> partitions, an error's code, or absent = no such topic. None: Kafka does not answer."""

    def __init__(self, listed):
        self.listed, self.messages, self.assigned, self.closed = listed, [], [], False

    def list_topics(self, topic, timeout):
        if self.listed is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        known = self.listed.get(topic, KafkaError.UNKNOWN_TOPIC_OR_PART)
        error = KafkaError(known) if isinstance(known, int) else None
        return Topics({topic: type("T", (), {"error": error, "partitions": () if error else known})})

    def position(self, places):
        return places

    def assign(self, places):
        self.assigned.append({(p.topic, p.partition): p.offset for p in places})

    def poll(self, seconds):
        return self.messages.pop(0) if self.messages else None

    def close(self):
        self.closed = True
