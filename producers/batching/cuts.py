"""Plan of a recorded process's batches: 4,096 rows or 500 ms each, and a heartbeat after a second of silence.

All times are event times, ns since the epoch. A row can be sent once it is *ready* (a kernel when it has ended).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drumline.schemas.columns import Array

MAX_ROWS = 4_096
FLUSH_NS = 500_000_000
HEARTBEAT_NS = 1_000_000_000


@dataclass(frozen=True)
class BatchPlan:
    """Rows and times of the batches of one (process, topic, key).

    Batch i holds rows order[low[i]:high[i]]; low == high is a heartbeat. `time_ns`: when it is closed, never falling.
    `watermark_ns`: no row of a later batch starts before it.
    """

    order: Array
    low: Array
    high: Array
    time_ns: Array
    watermark_ns: Array

    def __len__(self) -> int:
        return len(self.low)

    def least_later(self, values: Array) -> Array:
        """Return for each batch the smallest of `values` among rows not sent yet; int64 max if all are."""
        return _suffix_min(values[self.order])[self.high]


def plan_batches(
    start_ns: Array,
    ready_ns: Array,
    first_ns: int,
    last_ns: int,
    *,
    max_rows: int = MAX_ROWS,
) -> BatchPlan:
    """Plan the batches of a process that runs from `first_ns` to `last_ns`; rows (int64 times) may be in any order.

    Flushes fall on first_ns + k * FLUSH_NS. The last batch is closed at `last_ns`, as its watermark shows.
    """
    order = np.argsort(ready_ns, kind="stable")
    ready = ready_ns[order]
    tick = (ready - first_ns) // FLUSH_NS
    begins = np.concatenate([[True], tick[1:] != tick[:-1]]) if len(ready) else np.zeros(0, bool)
    group_start = np.flatnonzero(begins)
    position = np.arange(len(ready)) - (group_start[np.cumsum(begins) - 1] if len(ready) else 0)
    low = np.flatnonzero(position % max_rows == 0)
    high = np.append(low[1:], len(ready)) if len(low) else low
    full = high - low == max_rows
    last = high - 1
    flushed = np.minimum(first_ns + (tick[last] + 1) * FLUSH_NS, last_ns)
    time = np.maximum.accumulate(np.where(full, ready[last], np.maximum(flushed, ready[last])))

    # Heartbeats after a second of silence, and a final batch.
    marks = np.concatenate([[first_ns], time, [max(last_ns, int(time[-1]) if len(time) else last_ns)]])
    gaps = np.diff(marks)
    heartbeats = np.maximum((gaps - 1) // HEARTBEAT_NS, 0)
    before = np.repeat(np.arange(len(gaps)), heartbeats)
    nth = np.arange(len(before)) - np.repeat(np.cumsum(heartbeats) - heartbeats, heartbeats) + 1
    heartbeat_time = marks[before] + nth * HEARTBEAT_NS
    sent = np.concatenate([[0], high])[before]
    if marks[-1] > marks[-2] or len(time) == 0:
        heartbeat_time, sent = np.append(heartbeat_time, marks[-1]), np.append(sent, len(ready))
    all_time = np.concatenate([time, heartbeat_time])
    all_low, all_high = np.concatenate([low, sent]), np.concatenate([high, sent])
    by_time = np.lexsort((all_high, all_time))
    all_time, all_low, all_high = all_time[by_time], all_low[by_time], all_high[by_time]
    watermark = np.minimum(all_time, _suffix_min(start_ns[order])[all_high])
    return BatchPlan(order, all_low, all_high, all_time, watermark)


def _suffix_min(values: Array) -> Array:
    """Return the smallest of values[i:], one longer than `values`; int64 max at the end."""
    padded = np.append(values.astype(np.int64), np.iinfo(np.int64).max)
    smallest: Array = np.minimum.accumulate(padded[::-1])[::-1]
    return smallest
