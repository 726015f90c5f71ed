"""Where a record stands in all that topics of its name ever held.

A topic that was deleted and created anew numbers its records from 0 again, and state that remembers offsets would take
them for seen. So stages are given positions: the offset, and 2^48 more for every topic of that name before this one.
Which one that is, is kept with the state, by Kafka's id of the topic. Key: t|topic.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import numpy as np

from drumline.streams.core.records import key, pack_rows, unpack_rows

#: Of one topic no partition holds so many records; 2^15 topics of one name fit into the i8 of state values.
OFFSETS = 1 << 48
_NO_ROWS = np.dtype([("none", "u1")])


def kept(data: bytes | None) -> tuple[str, int]:
    """(id of the topic that the state was made of, how many had its name before); "" = none. Raises ValueError on
    another version."""
    if data is None:
        return "", 0
    head = unpack_rows(data, _NO_ROWS).head
    return str(head["id"]), int(head["before"])


def replaced(data: bytes | None, topic_id: str) -> bool:
    """Whether state was made of a topic of the same name that is gone. `topic_id`: of today's, "" = unknown."""
    before, _ = kept(data)
    return bool(before and topic_id) and before != topic_id


class Positions:
    """Of one stage in one partition. `ids`: topic -> Kafka's id of it. Raises ValueError on another version's state."""

    def __init__(self, store: MutableMapping[str, bytes], ids: Mapping[str, str]) -> None:
        self._store, self._ids = store, ids
        self._first: dict[str, int] = {}
        for topic in ids:  # what cannot be read ends the recovery, and is not the first record's fault
            kept(store.get(key("t", topic)))

    def of(self, topic: str, offset: int) -> int:
        """Rises from record to record, from one topic of this name to the next as well."""
        first = self._first.get(topic)
        if first is None:
            first = self._first[topic] = self._begin(topic) * OFFSETS
        return first + offset

    def _begin(self, topic: str) -> int:
        """How many topics had this name before. Written before anything that rests on it."""
        name, topic_id = key("t", topic), self._ids.get(topic, "")
        data = self._store.get(name)
        known, before = kept(data)
        before += replaced(data, topic_id)
        if topic_id and topic_id != known:
            self._store[name] = pack_rows(-1, {"id": topic_id, "before": before}, np.zeros(0, _NO_ROWS))
        return before
