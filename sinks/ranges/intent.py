"""Write and read intents: Kafka commit metadata that fixes a range before its rows are inserted.

An intent is enough for another process, with another schema registry, to rebuild the same rows after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline.schemas.parts.joining import MOST_PARTS, place_of, position
from drumline.sinks.ranges.offset_ranges import OffsetRange, pack, unpack

#: Kafka's default offset.metadata.max.bytes is 4,096; ranges are cut before their intent gets longer than this.
MAX_BYTES = 3_900
_VERSION = 1
#: Ends the names of fields that list parts of records.
_OF_PARTS = "-parts"


class BadIntent(ValueError):
    """Reports commit metadata that is not drumline's or not complete."""


@dataclass(frozen=True, slots=True)
class Intent:
    """Describes a range that is about to be inserted.

    `records`: Kafka records in the range. `rows`: rows that the table gets. `dead_letters`, `duplicate`, `fenced`,
    `expired`: positions (schemas/parts/joining.py) classified so; a replay does not classify again.
    `published_ms`: when Kafka received the last record; -1 = unknown.
    """

    range: OffsetRange
    records: int
    rows: int
    dead_letters: frozenset[int] = field(default_factory=frozenset)
    duplicate: frozenset[int] = field(default_factory=frozenset)
    published_ms: int = -1
    fenced: frozenset[int] = field(default_factory=frozenset)
    expired: frozenset[int] = field(default_factory=frozenset)


def write_intent(intent: Intent) -> str:
    """Return the commit metadata, ASCII. A range whose metadata exceeds MAX_BYTES should have been cut earlier."""
    offsets = intent.range
    content = {"v": _VERSION, "t": offsets.topic_id, "to": offsets.last, "n": intent.records, "rows": intent.rows}
    if intent.published_ms >= 0:
        content["at"] = intent.published_ms
    listed = (intent.dead_letters, intent.duplicate, intent.fenced, intent.expired)
    for name, positions in zip(("dead", "dup", "fen", "exp"), listed, strict=True):
        places = [(number, *place_of(number)) for number in positions]
        if whole := [offset for _, offset, part in places if not part]:
            content[name] = pack(whole, offsets.first)
        if parts := [number for number, _, part in places if part]:
            content[name + _OF_PARTS] = pack(parts, position(offsets.first, 0))
    return json.dumps(content, separators=(",", ":"))


def _positions(content: Mapping[str, Any], name: str, first: int, last: int) -> frozenset[int]:
    """Return the positions of the records and parts that a field and its sibling list."""
    whole = unpack(content.get(name, ""), first, last)
    parts = unpack(content.get(name + _OF_PARTS, ""), position(first, 0), position(last, MOST_PARTS))
    return parts.union(position(offset, 0) for offset in whole)


def write_done(topic_id: str) -> str:
    """Return the metadata of a commit with nothing pending."""
    return json.dumps({"v": _VERSION, "t": topic_id}, separators=(",", ":"))


def read_metadata(metadata: str | None, partition: int, offset: int) -> tuple[str, Intent | None]:
    """Return (topic id, pending intent or None) from a partition's committed (offset, metadata). Raises BadIntent.

    Empty metadata (an offset that an operator set by hand) means topic id "" and nothing pending.
    """
    if not metadata:
        return "", None
    try:
        content = json.loads(metadata)
        if content["v"] != _VERSION:
            raise BadIntent(f"intent version {content['v']}; this drumline reads {_VERSION}")
        topic_id = str(content["t"])
        if "to" not in content:
            return topic_id, None
        last = int(content["to"])
        return topic_id, Intent(
            OffsetRange(topic_id, partition, offset, last),
            int(content["n"]),
            int(content["rows"]),
            _positions(content, "dead", offset, last),
            _positions(content, "dup", offset, last),
            int(content.get("at", -1)),
            _positions(content, "fen", offset, last),
            _positions(content, "exp", offset, last),
        )
    except BadIntent:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise BadIntent(f"commit metadata is not an intent ({type(error).__name__})") from None
