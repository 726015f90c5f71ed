"""Dead letters as people see them: where from, why, how many records; and putting them back. Never their bytes.

Sinks and stream workers judge for themselves, so one record may have a letter of each: letters are counted per reader,
records by origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drumline.schemas.confluent import framed_schema_id
from drumline.schemas.dead_letters import read_headers

Origin = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`partition, offset` are the letter's own; `origin` is (topic id, partition, offset) of the record, the id empty
    where the reader did not know it. `reason`: the error's type. `by`: who wrote it. `replay_of`: the letter that was
    put back and died again. `headers`: the record's own."""

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
        """All of it but the payload, of which only the size is told."""
        topic_id, partition, offset = self.origin
        return {
            "partition": self.partition,
            "offset": self.offset,
            "time": when(self.time_ms),
            "reason": self.reason,
            "text": self.text,
            "by": self.by,
            "origin": {"topic": self.topic, "topic_id": topic_id, "partition": partition, "offset": offset},
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
        headers.origin or ("dead letter", partition, offset),  # without origin it counts as a record of its own
        framed_schema_id(message.value()),
        headers.replay_of,
        headers.record,
    )


class Origins:
    """A set of records. A letter that does not know its topic's id means the record at that offset, whatever the id."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, int], set[str]] = {}

    def add(self, origin: Origin) -> bool:
        """False if it was there already."""
        topic_id, partition, offset = origin
        ids = self._ids.setdefault((partition, offset), set())
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
    """Letters of one topic with one reason from one reader."""

    topic: str
    reason: str
    by: str
    letters: int = 0
    bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0
    origins: Origins = field(default_factory=Origins)

    def add(self, one: DeadLetter) -> None:
        self.first_ms = min(self.first_ms, one.time_ms) if self.letters else one.time_ms
        self.last_ms = max(self.last_ms, one.time_ms)
        self.letters += 1
        self.bytes += len(one.value or b"")
        self.origins.add(one.origin)

    def as_json(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in ("topic", "reason", "by", "letters", "bytes")}
        return {**named, "records": len(self.origins), "first": when(self.first_ms), "last": when(self.last_ms)}


def grouped(letters: Iterable[DeadLetter]) -> tuple[list[DeadLetterGroup], dict[str, int]]:
    """Groups, most letters first, and distinct records per topic over all reasons and readers."""
    groups: dict[tuple[str, str, str], DeadLetterGroup] = {}
    records: dict[str, Origins] = {}
    for one in letters:
        groups.setdefault((one.topic, one.reason, one.by), DeadLetterGroup(one.topic, one.reason, one.by)).add(one)
        records.setdefault(one.topic, Origins()).add(one.origin)
    ordered = sorted(groups.values(), key=lambda group: (group.topic, -group.letters, group.reason, group.by))
    return ordered, {topic: len(origins) for topic, origins in records.items()}


def due(letters: Iterable[DeadLetter], done: Mapping[tuple[str, int], int], reason: str = "") -> Iterator[DeadLetter]:
    """Letters to put back, each record once. `letters`: all of a topic, in order. `done`: (reason, partition) -> the
    offset before which all letters of that reason were put back. Pure."""
    back = Origins()
    waiting = []
    for one in letters:
        if one.offset < done.get((one.reason, one.partition), 0):
            back.add(one.origin)
        elif reason in ("", one.reason):
            waiting.append(one)
    for one in waiting:
        if back.add(one.origin):
            yield one


def when(time_ms: int) -> str:
    """ISO 8601, UTC, seconds; "" without a time."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds") if time_ms >= 0 else ""
