"""Prepares the demo's stream worker, which must not disturb a worker of the user.

It is an app of its own: its windows are shorter than the default, and a worker cannot read state of other windows. An
app that is new to Kafka would process all stored records and evaluate the user's runs a second time. So the demo
commits the ends of all topics for it first.
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
#: Longest time for which Kafka keeps the members of a killed worker; s.
GROUP_S = 60.0
#: Errors of a group that may pass: it has members, as only they may commit then, or its coordinator is not ready yet.
_PASSING = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


class DemoFailed(RuntimeError):
    """The demo cannot run or did not complete. The message gives the reason and what to do."""


def require_no_worker(settings: Settings) -> None:
    """Raise DemoFailed if a worker of the user runs: it would evaluate the demo's run too, in its own windows."""
    if read_statuses(settings, 0):
        raise DemoFailed(
            "your stream worker is running, and would evaluate the demo's run too, in its own windows; stop it, or "
            "give the demo a stack of its own (DRUMLINE_LOCAL__STATE and the ports in docs/guide/local-stack.md)"
        )


def has_nothing_to_read(settings: Settings) -> bool:
    """Return whether nothing waits in Kafka for the worker of `settings`. Raises KafkaException."""
    with closing(Offsets(settings)) as kafka:
        ends = kafka.ends(kafka.places([spec.topic.value for spec in TOPICS if has_schema(spec.topic)]))
        committed = kafka.committed(settings.stream.app_id, ends)
    return all(end == 0 or committed.get(place, (0, ""))[0] >= end for place, end in ends.items())


def commit_ends(settings: Settings) -> None:
    """Commit the ends of all topics for the worker of `settings`, which is not running yet.

    Raises: KafkaException, of what may pass after GROUP_S; DemoFailed if such a worker runs for so long.
    """
    with closing(Offsets(settings)) as kafka:
        ends = kafka.ends(kafka.places([spec.topic.value for spec in TOPICS if has_schema(spec.topic)]))
    places = [(place.rsplit(":", 1), end) for place, end in ends.items()]
    offsets = [TopicPartition(topic, int(number), end) for (topic, number), end in places]
    config = silence_librdkafka(client_config(settings, "drumline-demo"))
    consumer = Consumer({**config, "group.id": settings.stream.app_id, "enable.auto.commit": False})
    deadline = time.monotonic() + GROUP_S
    try:
        while (error := _passing_error(consumer, offsets)) is not None:
            if time.monotonic() > deadline:
                if error.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID:
                    raise DemoFailed("another demo is running: wait until it has ended")
                raise error
            time.sleep(1.0)
    finally:
        consumer.close()


def _passing_error(consumer: Consumer, offsets: list[TopicPartition]) -> KafkaException | None:
    """Commit the offsets, and return an error that may pass, None without one."""
    try:
        consumer.commit(offsets=offsets, asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() in _PASSING:
            return error
        raise
    return None
