"""Counts the rows of a spool that are older than their tables keep rows, before they are published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from drumline.infra.config.clickhouse_settings import RetentionSettings
from drumline.producers.agent.messages import sent_and_first_ns
from drumline.producers.spool.folder_layout import BadSpool, segment_name
from drumline.producers.spool.reader import Segment
from drumline.producers.spool.root import folders
from drumline.producers.spool.segment_format import LOSS, Frame
from drumline.schemas.bounds.limits import PAST_NS

#: Retention counts from when Kafka gets a row, so none is lost.
OLD_ROWS = (
    "rows are older than their table keeps rows; they are kept as long as new ones, from now on, but for those that "
    "the database has stored before: to have them again, publish into another one"
)


def is_old(frame: Frame, first_ns: int, retention: RetentionSettings, now_ns: int) -> bool:
    """Return whether the rows of a batch are older than their table keeps rows; `first_ns`: time of the first.

    Not those so old that they become dead letters.
    """
    return frame.rows > 0 and now_ns - PAST_NS <= first_ns < retention.kept_since_ns(frame.topic, now_ns)


def old_rows(
    root: Path,
    positions: Mapping[str, Mapping[int, int]],
    retention: RetentionSettings,
    now_ns: int,
    go_on: Callable[[], bool] = lambda: True,
) -> Counter[str]:
    """Return the rows by topic that are older than their table keeps rows, of all that is not published yet.

    `positions`: of the cursor. `go_on`: asked before each segment. Reads the spool once. What cannot be read is left
    out here: the agent names it. Raises OSError for the root.
    """
    counts: Counter[str] = Counter()
    for folder in folders(root):
        with suppress(OSError, BadSpool):
            for name in (segment_name(number, suffix) for suffix, of in folder.files().items() for number in of):
                at = positions.get(folder.path.name, {}).get(int(name.partition(".")[0]), 0)
                with suppress(OSError, BadSpool):
                    counts += _of_segment(Segment(folder, name, at), retention, now_ns) if go_on() else Counter()
    return counts


def _of_segment(segment: Segment, retention: RetentionSettings, now_ns: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    try:
        while items := segment.read(complete=True):
            for item in items:
                if isinstance(item, Frame) and item.kind != LOSS:
                    with suppress(ValueError):  # no batch
                        if is_old(item, sent_and_first_ns(item)[1], retention, now_ns):
                            counts[item.topic] += item.rows
    finally:
        segment.close()
    return counts
