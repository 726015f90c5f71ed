"""Define the headers of dead letters: sinks and stream workers write them, `drumline dlq` reads them.

A dead letter keeps the key and value of the rejected record. Header names are data: records of all versions share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Starts the names of drumline's headers; all other headers are the record's own.
HEADER_PREFIX = "drumline."
#: Header of a replayed record: `TOPIC.dlq:PARTITION:OFFSET` of the dead letter.
REPLAY_OF = f"{HEADER_PREFIX}replay.of"
#: Header of a dead letter without the record's value and headers: why. A key over bounds.MAX_KEY_BYTES is missing too.
OMITTED = f"{HEADER_PREFIX}omitted"
#: The most characters of `text` that are written.
TEXT_LIMIT = 1_000

Header = tuple[str, str | bytes | None]
#: Header of a batch whose rows its host has counted in windows (policy rollup). Without the prefix, so that it stays
#: with a record when its dead letter is replayed.
COUNTED_HEADER = "windows.counted"
COUNTED: tuple[Header, ...] = ((COUNTED_HEADER, b"host"),)


@dataclass(frozen=True, slots=True)
class Origin:
    """Names the rejected record. `topic_id`, `timestamp_ms`: None where the writer does not have them.

    `part`: number of the rejected part of it (parts/joining.py), whose value the dead letter has; 0 = the whole record.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None
    timestamp_ms: int | None = None
    part: int = 0


@dataclass(frozen=True, slots=True)
class Rejection:
    """States why a program rejected a record.

    `code`: the error's type. `text`: its message, without payload. `by`: "sink", or the app id of a stream worker.
    `schema_id`: of the record's frame, "" without a frame. `version`: of drumline. Both are None where not written.
    """

    code: str
    text: str
    by: str
    schema_id: str | None = None
    version: str | None = None


def write_headers(origin: Origin, rejection: Rejection, record: Iterable[Header] = ()) -> list[Header]:
    """Return the headers of a dead letter; `record`: the record's own, which follow drumline's."""
    values: dict[str, object] = {
        "origin.topic": origin.topic,
        "origin.topic_id": origin.topic_id,
        "origin.partition": origin.partition,
        "origin.offset": origin.offset,
        "origin.part": origin.part or None,
        "origin.timestamp_ms": origin.timestamp_ms,
        "error.code": rejection.code,
        "error.text": rejection.text[:TEXT_LIMIT],
        "error.by": rejection.by,
        "schema_id": rejection.schema_id,
        "version": rejection.version,
    }
    written = [(HEADER_PREFIX + name, str(value).encode()) for name, value in values.items() if value is not None]
    return [*written, *record]


@dataclass(frozen=True, slots=True)
class DeadLetterHeaders:
    """Holds the headers of a dead letter as read from Kafka.

    `origin`: (topic id, partition, offset, part) of the rejected record, the id "" where the writer did not have it;
    None where a program other than drumline wrote the headers. `code`, `by`: "?" there. `replay_of`: the dead letter
    that was replayed and rejected again, or "". `record`: the record's own headers.
    """

    origin: tuple[str, int, int, int] | None
    code: str
    text: str
    by: str
    replay_of: str
    record: tuple[tuple[str, bytes | None], ...]


def read_headers(headers: Iterable[Header]) -> DeadLetterHeaders:
    """Parse the headers of a dead letter. A record that was rejected twice has older ones too: the first are newest."""
    raw = [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
    values: dict[str, str] = {}
    for name, value in raw:
        if name.startswith(HEADER_PREFIX):
            key = name.removeprefix(HEADER_PREFIX)
            values.setdefault(key, (value or b"").decode("utf-8", "backslashreplace"))
    numbers = [values.get("origin." + name, "") for name in ("partition", "offset")]
    numbers.append(values.get("origin.part", "0"))
    origin = None
    if all(number.isdecimal() for number in numbers):
        partition, offset, part = map(int, numbers)
        origin = values.get("origin.topic_id", ""), partition, offset, part
    return DeadLetterHeaders(
        origin,
        values.get("error.code") or "?",
        values.get("error.text", ""),
        values.get("error.by") or "?",
        values.get("replay.of", ""),
        tuple((name, value) for name, value in raw if not name.startswith(HEADER_PREFIX)),
    )


def is_counted(headers: Iterable[Header] | None) -> bool:
    """Return whether the windows of a record's rows are published already."""
    return any(name == COUNTED_HEADER for name, _ in headers or ())
