"""Number the records, and their parts, of all topics that had the same name, one after the other.

A recreated topic numbers its records from 0 again, and state that remembers offsets would take them for duplicates. So
stages get positions: offset and part (schemas/parts/joining.py), and 2^48 more for every topic of that name before this
one. The state stores that number with Kafka's id of the topic. Key: t|topic.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np

from drumline.schemas.parts.joining import position
from drumline.streams.core.records import NO_ROWS, key, pack_rows, unpack_rows

#: No partition of a topic holds so many records, of 255 parts each; 2^15 topics of one name fit into the i8 of state
#: values.
OFFSETS = 1 << 48


def stored_topic(data: bytes | None) -> tuple[str, int]:
    """Return (id of the topic that the state was built from, number of topics that had its name before); "" = none.

    Raises ValueError on another version.
    """
    if data is None:
        return "", 0
    head = unpack_rows(data, NO_ROWS).head
    return str(head["id"]), int(head["before"])


def was_replaced(data: bytes | None, topic_id: str) -> bool:
    """Return True if state was built from a deleted topic of the same name.

    `topic_id`: of today's topic, "" = unknown.
    """
    before, _ = stored_topic(data)
    return bool(before and topic_id) and before != topic_id


class TopicPositions:
    """Converts offsets to positions, for one stage in one partition.

    `ids`: topic -> Kafka's id of it. Raises ValueError on another version's state.
    """

    def __init__(self, store: MutableMapping[str, bytes], ids: Mapping[str, str]) -> None:
        self._store, self._ids = store, ids
        self._first: dict[str, int] = {}
        for topic in ids:  # unreadable state ends the recovery, before any record
            stored_topic(store.get(key("t", topic)))

    def position_of(self, topic: str, offset: int, part: int = 0) -> int:
        """Return a record's position; rises from record to record, also from one topic of this name to the next."""
        first = self._first.get(topic)
        if first is None:
            first = self._first[topic] = self._begin(topic) * OFFSETS
        return first + position(offset, part)

    def _begin(self, topic: str) -> int:
        """Return how many topics had this name before; stored before anything that depends on it."""
        name, topic_id = key("t", topic), self._ids.get(topic, "")
        data = self._store.get(name)
        known, before = stored_topic(data)
        before += was_replaced(data, topic_id)
        if topic_id and topic_id != known:
            self._store[name] = pack_rows(-1, {"id": topic_id, "before": before}, np.zeros(0, NO_ROWS))
        return before
