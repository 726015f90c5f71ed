"""Counts the rows of a spool that are older than their tables keep rows, before they are published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.producers.agent.messages import sent_and_first_ns
from drumline.producers.spool.frames import LOSS, Frame
from drumline.producers.spool.layout import BadSpool, segment_name
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.root import folders

#: Retention counts from when Kafka gets a row, so none is lost.
OLD_ROWS = "rows are older than their table keeps rows; they are kept as long as new ones, from now on"
#: The ledger outlives the rows.
STORED_BEFORE = "a database that has stored them before takes them for duplicates, also if it has deleted them since"


def old_rows(
    root: Path, positions: Mapping[str, Mapping[int, int]], retention: RetentionSettings, now_ns: int
) -> Counter[str]:
    """Return the rows by topic that are older than their table keeps rows, of all that is not published yet.

    `positions`: of the cursor. Reads the spool once. What cannot be read is left out here: the agent says so.
    """
    counts: Counter[str] = Counter()
    for folder in folders(root):
        with suppress(OSError, BadSpool):
            for suffix, numbers in folder.files().items():
                for number in numbers:
                    at = positions.get(folder.path.name, {}).get(number, 0)
                    counts += _of_segment(Segment(folder, segment_name(number, suffix), at), retention, now_ns)
    return counts


def _of_segment(segment: Segment, retention: RetentionSettings, now_ns: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        while items := segment.read(complete=True):
            for item in items:
                if isinstance(item, Frame) and item.kind != LOSS and item.rows:
                    with suppress(ValueError):  # no batch, or of no topic of ours
                        if sent_and_first_ns(item)[1] < retention.kept_since_ns(item.topic, now_ns):
                            counts[item.topic] += item.rows
    finally:
        segment.close()
    return counts
