"""The demo's stream worker beside those of the user: an app of its own, which begins with what the demo publishes.

Its windows are shorter than the default, and a worker cannot read state of other windows. An app that is new to Kafka
would work off all that lies there, and judge the user's runs a second time.
"""

from __future__ import annotations

import time
from contextlib import closing

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from drumline.infra.config.settings import Settings
from drumline.infra.kafka.config import client_config
from drumline.infra.kafka.connect import silence_librdkafka
from drumline.infra.kafka.offsets import Offsets
from drumline.infra.kafka.worker_status import read_statuses
from drumline.schemas.model import has_schema
from drumline.schemas.topics import TOPICS

APP_ID = "drumline-demo"
#: Kafka keeps the members of a worker that was killed for so long at most; s.
GROUP_S = 60.0


class DemoFailed(RuntimeError):
    """What went wrong, in words that name what to do."""


def no_other_worker(settings: Settings) -> None:
    """Raises DemoFailed if a worker of the user's runs here: it would judge the demo's run too, in its own windows."""
    if read_statuses(settings, 0):
        raise DemoFailed(
            "a stream worker of yours runs here, and would judge the demo's run too, in its own windows; stop it, or "
            "give the demo a stack of its own (DRUMLINE_LOCAL__STATE and the ports in docs/guide/local-stack.md)"
        )


def begin_at_the_ends(settings: Settings) -> None:
    """Commit the ends of all topics for the worker of `settings`, which does not run yet.

    Raises KafkaException; DemoFailed if one does run, after GROUP_S.
    """
    with closing(Offsets(settings)) as kafka:
        ends = kafka.ends(kafka.places([spec.topic.value for spec in TOPICS if has_schema(spec.topic)]))
    places = [(place.rsplit(":", 1), end) for place, end in ends.items()]
    offsets = [TopicPartition(topic, int(number), end) for (topic, number), end in places]
    config = silence_librdkafka(client_config(settings, "drumline-demo"))
    consumer = Consumer({**config, "group.id": settings.stream.app_id, "enable.auto.commit": False})
    deadline = time.monotonic() + GROUP_S
    try:
        while not _committed(consumer, offsets):
            if time.monotonic() > deadline:
                raise DemoFailed("another demo runs here: its stream worker is there; wait until it has ended")
            time.sleep(1.0)
    finally:
        consumer.close()


def _committed(consumer: Consumer, offsets: list[TopicPartition]) -> bool:
    """False: the group has members, who alone may commit."""
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_MEMBER_ID:
            raise
        return False
    return True
