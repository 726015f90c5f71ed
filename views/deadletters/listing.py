"""Dead letters in readable form: origin, reason, number of records; and the selection for a replay.

A sink and a stream worker may both reject a record, so it may have two dead letters. Dead letters are counted per
reader, records by origin. A part of a record (schemas/parts/joining.py) counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drumline.schemas.confluent import framed_schema_id
from drumline.schemas.dead_letters import read_headers

Origin = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of a dead-letter topic.

    partition, offset: place of the dead letter.
    origin: (topic id, partition, offset, part) of the record; the id is empty where the reader did not know it.
    reason: type of the error.
    by: program that wrote it.
    replay_of: dead letter whose replay was rejected again.
    headers: those of the record.
    """

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    reason: str
    text: str
    by: str
    origin: Origin
    schema_id: int | None
    replay_of: str
    headers: tuple[tuple[str, bytes | None], ...]

    def as_json(self) -> dict[str, Any]:
        """Return all fields; the payload only as its size."""
        topic_id, partition, offset, part = self.origin
        place = {"topic": self.topic, "topic_id": topic_id, "partition": partition, "offset": offset, "part": part}
        return {
            "partition": self.partition,
            "offset": self.offset,
            "time": when(self.time_ms),
            "reason": self.reason,
            "text": self.text,
            "by": self.by,
            "origin": place,
            "key": None if self.key is None else self.key.decode("utf-8", "backslashreplace"),
            "bytes": None if self.value is None else len(self.value),
            "schema_id": self.schema_id,
            "replay_of": self.replay_of,
            "headers": {name: (value or b"").decode("utf-8", "backslashreplace") for name, value in self.headers},
        }


def parse_dead_letter(message: Any, topic: str) -> DeadLetter:
    """Return a record of the dead-letter topic of `topic`; records of foreign programs have the reason "?"."""
    headers = read_headers(message.headers() or [])
    partition, offset = int(message.partition()), int(message.offset())
    return DeadLetter(
        topic,
        partition,
        offset,
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers.code,
        headers.text,
        headers.by,
        headers.origin or ("dead letter", partition, offset, 0),  # without origin it counts as a record of its own
        framed_schema_id(message.value()),
        headers.replay_of,
        headers.record,
    )


class Origins:
    """A set of records. An origin without topic id stands for the record at that offset, whatever its id."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int, int], set[str]] = {}

    def add(self, origin: Origin) -> bool:
        """Add a record; return False if the set has it."""
        topic_id, *place = origin
        ids = self._ids.setdefault((place[0], place[1], place[2]), set())
        known = topic_id in ids or (bool(ids) and (not topic_id or "" in ids))
        if topic_id and "" in ids:  # the same record, now by its full name
            ids.discard("")
        if topic_id or not ids:
            ids.add(topic_id)
        return not known

    def __len__(self) -> int:
        return sum(len(ids) for ids in self._ids.values())


@dataclass(slots=True)
class DeadLetterGroup:
    """Dead letters of one topic with one reason from one reader."""

    topic: str
    reason: str
    by: str
    count: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    origins: Origins = field(default_factory=Origins)

    def add(self, dead_letter: DeadLetter) -> None:
        """Count one more dead letter."""
        self.first_ms = min(self.first_ms, dead_letter.time_ms) if self.count else dead_letter.time_ms
        self.last_ms = max(self.last_ms, dead_letter.time_ms)
        self.count += 1
        self.bytes += len(dead_letter.value or b"")
        self.origins.add(dead_letter.origin)

    def as_json(self) -> dict[str, Any]:
        """Return the counts, the number of distinct records, and the first and last time."""
        named = {"topic": self.topic, "reason": self.reason, "by": self.by, "letters": self.count, "bytes": self.bytes}
        return {**named, "records": len(self.origins), "first": when(self.first_ms), "last": when(self.last_ms)}


def grouped(dead_letters: Iterable[DeadLetter]) -> tuple[list[DeadLetterGroup], dict[str, int]]:
    """Return groups, largest first, and distinct records per topic over all reasons and readers."""
    groups: dict[tuple[str, str, str], DeadLetterGroup] = {}
    records: dict[str, Origins] = {}
    for entry in dead_letters:
        key = (entry.topic, entry.reason, entry.by)
        groups.setdefault(key, DeadLetterGroup(*key)).add(entry)
        records.setdefault(entry.topic, Origins()).add(entry.origin)
    ordered = sorted(groups.values(), key=lambda group: (group.topic, -group.count, group.reason, group.by))
    return ordered, {topic: len(origins) for topic, origins in records.items()}


def due(
    dead_letters: Iterable[DeadLetter], done: Mapping[tuple[str, int], int], reason: str = ""
) -> Iterator[DeadLetter]:
    """Yield the dead letters to replay, each record once. Those without value are left out: it would be a tombstone.

    `dead_letters`: all of a topic, in order. `done`: (reason, partition) -> offset before which all of that reason
    were replayed.
    """
    replayed = Origins()
    waiting = []
    for candidate in dead_letters:
        if candidate.offset < done.get((candidate.reason, candidate.partition), 0):
            replayed.add(candidate.origin)
        elif candidate.value is not None and reason in ("", candidate.reason):
            waiting.append(candidate)
    for candidate in waiting:
        if replayed.add(candidate.origin):
            yield candidate


def when(time_ms: int) -> str:
    """Return a time as ISO 8601, UTC, in seconds; "" without one."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds") if time_ms >= 0 else ""
