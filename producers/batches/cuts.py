"""Where a stream of rows is cut into batches: at 4,096 rows or 500 ms, and an empty batch after a second of nothing.

Pure: all times are event times, ns since the epoch. A row can be sent once it is *ready* (a kernel when it has ended).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.schemas.columns import Array

MAX_ROWS = 4_096
FLUSH_NS = 500_000_000
HEARTBEAT_NS = 1_000_000_000


@dataclass(frozen=True)
class Cuts:
    """Batches of one (process, topic, key). Batch i holds rows order[low[i]:high[i]]; low == high is a heartbeat.

    `time_ns`: when it is closed, never falling. `watermark_ns`: no row of a later batch starts before it.
    """

    order: Array
    low: Array
    high: Array
    time_ns: Array
    watermark_ns: Array

    def __len__(self) -> int:
        return len(self.low)

    def least_later(self, values: Array) -> Array:
        """For each batch the smallest of `values` (int64, one a row) among rows not sent yet; int64 max if all are."""
        return _suffix_min(values[self.order])[self.high]


def cut(
    start_ns: Array,
    ready_ns: Array,
    first_ns: int,
    last_ns: int,
    *,
    max_rows: int = MAX_ROWS,
    flush_ns: int = FLUSH_NS,
    heartbeat_ns: int = HEARTBEAT_NS,
) -> Cuts:
    """Cut rows (int64 starts and ready times, in any order) of a process that lives from `first_ns` to `last_ns`.

    Flushes fall on first_ns + k * flush_ns; the last batch is closed at last_ns, so that its watermark says: all sent.
    """
    order = np.argsort(ready_ns, kind="stable")
    ready = ready_ns[order]
    tick = (ready - first_ns) // flush_ns
    begins = np.concatenate([[True], tick[1:] != tick[:-1]]) if len(ready) else np.zeros(0, bool)
    group_start = np.flatnonzero(begins)
    position = np.arange(len(ready)) - (group_start[np.cumsum(begins) - 1] if len(ready) else 0)
    low = np.flatnonzero(position % max_rows == 0)
    high = np.append(low[1:], len(ready)) if len(low) else low
    full = high - low == max_rows
    last = high - 1
    flushed = np.minimum(first_ns + (tick[last] + 1) * flush_ns, last_ns)
    time = np.maximum.accumulate(np.where(full, ready[last], np.maximum(flushed, ready[last])))

    # Nothing for a second: say so. And a last word at the end.
    marks = np.concatenate([[first_ns], time, [max(last_ns, int(time[-1]) if len(time) else last_ns)]])
    gaps = np.diff(marks)
    beats = np.maximum((gaps - 1) // heartbeat_ns, 0)
    before = np.repeat(np.arange(len(gaps)), beats)
    nth = np.arange(len(before)) - np.repeat(np.cumsum(beats) - beats, beats) + 1
    beat_time = marks[before] + nth * heartbeat_ns
    sent = np.concatenate([[0], high])[before]
    if marks[-1] > marks[-2] or len(time) == 0:
        beat_time, sent = np.append(beat_time, marks[-1]), np.append(sent, len(ready))
    all_time = np.concatenate([time, beat_time])
    all_low, all_high = np.concatenate([low, sent]), np.concatenate([high, sent])
    by_time = np.lexsort((all_high, all_time))
    all_time, all_low, all_high = all_time[by_time], all_low[by_time], all_high[by_time]
    watermark = np.minimum(all_time, _suffix_min(start_ns[order])[all_high])
    return Cuts(order, all_low, all_high, all_time, watermark)


def _suffix_min(values: Array) -> Array:
    """Smallest of values[i:], one longer than `values`; int64 max at the end."""
    padded = np.append(values.astype(np.int64), np.iinfo(np.int64).max)
    smallest: Array = np.minimum.accumulate(padded[::-1])[::-1]
    return smallest
