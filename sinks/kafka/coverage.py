"""Check that the group reads every partition of the declared topics.

librdkafka (2.16) subscribes to the topics that exist when it joins, and may not notice that a topic was created after
that, above all one that was deleted and created again under load. A new subscription does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from drumline.schemas.topics import Topic
from drumline.sinks.kafka.fencing import listed_group

CHECK_S = 5.0
TIMEOUT_S = 15.0
Place = tuple[str, int]


class Coverage:
    """Compares the partitions in Kafka with those that the group's members hold.

    Used by the sink's thread only; blocks for one request to the group's coordinator, and only while this member does
    not hold all. `reason`: which topics are missing or not read; "" if none.
    """

    def __init__(self, admin: AdminClient, group: str, topics: Sequence[Topic]) -> None:
        self.reason = ""
        self._admin, self._group = admin, group
        self._topics = [topic.value for topic in topics]
        self._requests: Mapping[str, Future[Any]] = {}
        self._requested_at = float("-inf")
        self._unread_before: set[Place] = set()

    def check(self, held: Mapping[Place, str], now: float) -> str:
        """Return why the sink must subscribe again, or "". `held`: partition -> Kafka's topic id; `now`: monotonic, s.

        A partition counts as unread if no member has it in two checks in a row, between which no rebalance ran.
        """
        if not self._requests:
            if now - self._requested_at >= CHECK_S:
                self._requested_at = now
                self._requests = self._admin.describe_topics(TopicCollection(self._topics), request_timeout=TIMEOUT_S)
            return ""
        if not all(request.done() for request in self._requests.values()):
            return ""
        answers, self._requests = self._requests, {}
        existing = {}
        for topic, answer in answers.items():
            try:
                existing[topic] = answer.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    return ""  # no broker answers: nothing is known
        ids = {topic: str(description.topic_id) for topic, description in existing.items()}
        recreated = sorted({topic for (topic, _), topic_id in held.items() if ids.get(topic, topic_id) != topic_id})
        if recreated:
            return f"{', '.join(recreated)}: recreated"
        places = {(topic, info.id) for topic, description in existing.items() for info in description.partitions}
        return self._compare(places, held.keys())

    def _compare(self, places: set[Place], held: Iterable[Place]) -> str:
        unread = places.difference(held)
        if unread:
            assigned = self._assigned()
            unread = set() if assigned is None else unread - assigned
        stays, self._unread_before = unread & self._unread_before, unread
        self.reason = describe(set(self._topics) - {topic for topic, _ in places}, unread)
        return describe((), stays)

    def _assigned(self) -> set[Place] | None:
        """Return what the group's members hold; None during a rebalance, or if the coordinator does not answer."""
        group = listed_group(self._admin, self._group)
        if group is None or group.state != "Stable":
            return None
        return {place for member in group.members for place in read_assignment(member.assignment or b"")}


def describe(missing: Iterable[str], unread: Iterable[Place]) -> str:
    """Return which topics do not exist and which are not read, "" if there are none."""
    counts: dict[str, int] = {}
    for topic, _ in sorted(unread):
        counts[topic] = counts.get(topic, 0) + 1
    texts = [f"{topic} does not exist (`drumline topics apply`)" for topic in sorted(missing)]
    return "; ".join(texts + [f"no sink reads {count} partitions of {topic}" for topic, count in counts.items()])


def read_assignment(data: bytes) -> set[Place]:
    """Return the partitions of a member's assignment, as Kafka's consumer protocol writes them."""
    places: set[Place] = set()
    if len(data) < 6:
        return places
    _, topics = struct.unpack_from(">hi", data)
    at = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", data, at)
        topic = data[at + 2 : at + 2 + length].decode()
        (count,) = struct.unpack_from(">i", data, at + 2 + length)
        at += 6 + length
        places.update((topic, number) for number in struct.unpack_from(f">{count}i", data, at))
        at += 4 * count
    return places
