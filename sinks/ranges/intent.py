"""What a sink is about to insert, written into Kafka's commit metadata before it does: enough to rebuild the very same
rows after a crash, by another process, with another schema registry. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from drumline.sinks.ranges.offset_ranges import OffsetRange, pack, unpack

#: Kafka's default offset.metadata.max.bytes is 4,096; ranges are cut before their intent gets longer than this.
MAX_BYTES = 3_900
_VERSION = 1


class BadIntent(ValueError):
    """Commit metadata that is not ours or not whole."""


@dataclass(frozen=True, slots=True)
class Intent:
    """`records`: Kafka records in the range; `rows`: rows the table gets. `dead`, `duplicate`: offsets judged so; a
    replay does not judge again."""

    range: OffsetRange
    records: int
    rows: int
    dead: frozenset[int] = field(default_factory=frozenset)
    duplicate: frozenset[int] = field(default_factory=frozenset)


def write_intent(intent: Intent) -> str:
    """The commit metadata, ASCII. Longer than MAX_BYTES means that the range should have been cut earlier."""
    offsets = intent.range
    content = {"v": _VERSION, "t": offsets.topic_id, "to": offsets.last, "n": intent.records, "rows": intent.rows}
    if intent.dead:
        content["dead"] = pack(intent.dead, offsets.first)
    if intent.duplicate:
        content["dup"] = pack(intent.duplicate, offsets.first)
    return json.dumps(content, separators=(",", ":"))


def write_done(topic_id: str) -> str:
    """The metadata of a commit with nothing pending."""
    return json.dumps({"v": _VERSION, "t": topic_id}, separators=(",", ":"))


def read_metadata(metadata: str | None, partition: int, offset: int) -> tuple[str, Intent | None]:
    """(topic id, pending intent or None) of a partition's committed (offset, metadata). Raises BadIntent.

    Empty metadata (an offset that somebody set by hand) is topic id "" and nothing pending.
    """
    if not metadata:
        return "", None
    try:
        content = json.loads(metadata)
        if content["v"] != _VERSION:
            raise BadIntent(f"intent version {content['v']}; this drumline knows {_VERSION}")
        topic_id = str(content["t"])
        if "to" not in content:
            return topic_id, None
        last = int(content["to"])
        return topic_id, Intent(
            OffsetRange(topic_id, partition, offset, last),
            int(content["n"]),
            int(content["rows"]),
            unpack(content.get("dead", ""), offset, last),
            unpack(content.get("dup", ""), offset, last),
        )
    except BadIntent:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise BadIntent(f"commit metadata is not an intent ({type(error).__name__})") from None
