"""Recognize the stored end of a partition's log in Kafka, and name the log that follows a lost one.

Kafka may lose records that are stored: it does not fsync, and an unclean leader lacks some. It then gives their offsets
to new records. Leader epochs show that, unless they are lost too. So a stored record is recognized by the time at which
Kafka received it.

The sink's name of a log is Kafka's topic id, then "~OFFSET" for each accepted loss: where the log continued. Tokens,
ledger and rows have this name, so two records at one offset are two records there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from drumline.sinks.ranges.partition import PartitionState


@dataclass(frozen=True, slots=True)
class StoredTail:
    """Describes the last record of a log that the ledger has. `published_ms`: when Kafka received it, as stored."""

    topic_id: str
    offset: int
    published_ms: int


def kafka_topic_id(topic_id: str) -> str:
    """Return Kafka's id of the topic from the name of one of its logs."""
    return topic_id.partition("~")[0]


def losses(topic_id: str) -> int:
    """Return how many losses were accepted before this log: the log with the most is the current one."""
    return topic_id.count("~")


def continued_at(topic_id: str, first: int) -> str:
    """Return the name of the log that continues at offset `first`, after a loss."""
    return f"{topic_id}~{first}"


def log_start(topic_id: str) -> int:
    """Return the offset at which this log begins: 0, or where it continued after a loss."""
    return int(topic_id.rpartition("~")[2]) if "~" in topic_id else 0


def log_spans(topic_id: str, first: int, last: int) -> list[tuple[str, int, int]]:
    """Return which log wrote which of the offsets first..last that Kafka has now: (name, first, last), rising."""
    name, *starts = topic_id.split("~")
    spans = [(name, 0)]
    for start in map(int, starts):
        name = continued_at(name, start)
        spans = [span for span in spans if span[1] < start] + [(name, start)]
    ends = [start - 1 for _, start in spans[1:]] + [last]
    cut = [(name, max(start, first), min(end, last)) for (name, start), end in zip(spans, ends, strict=True)]
    return [span for span in cut if span[1] <= span[2]]


def expected_end(state: PartitionState) -> int:
    """Return the offset that Kafka's log reached already, as commit, intent and ledger state."""
    return max(state.next_offset, *(offset + 1 for offset in state.expected), 0)


def replaced(state: PartitionState, offset: int, published_ms: int) -> str:
    """Return how a record that was read differs from the one that was stored or committed there; "" if it does not."""
    expected = state.expected.get(offset, published_ms)
    if expected == published_ms:
        state.expected.pop(offset, None)
        return ""
    then, now = (datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
                 for ms in (expected, published_ms))  # fmt: skip
    return f"the record at offset {offset} was published {now}, the one read there before {then}"


def first_difference(low: int, high: int, same: Callable[[int], bool]) -> int:
    """Return the first offset of low..high-1 where `same` is false, otherwise `high`. `same` never becomes true again.

    Two logs with a common beginning differ from one offset on.
    """
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if same(middle) else (low, middle)
    return low
