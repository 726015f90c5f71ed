"""Choose the partitions whose ranges are written next; there may be more than ClickHouse takes in a second."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from heapq import nlargest

from drumline.infra.config.settings import SinkSettings
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.partition import RANGE_BYTES, PartitionState

#: Topics of verdicts: their ranges go before all others.
AHEAD = (Topic.STRAGGLER, Topic.HANG)
#: Topics of rolling windows, and how long they collect, s: they trail the kernels anyway, and are few. A replica counts
#: as behind after longer (infra/clickhouse/replicas.py), and so does a worker (infra/grafana/alerts/pipeline.py).
WINDOWS, WINDOWS_S = (Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH), 20.0

#: Time for which the first rows after a pause are collected, in `flush_s`: those of other ranks come with them.
SOON = 0.3
#: Bound on memory: once all partitions have collected so much, everything is written. In flush_rows and RANGE_BYTES.
PRESSURE = 2
#: Ranges that are written together, and how many of them may go before those that wait longer. A range takes about 0.05
#: s, however few its rows, and a record that comes meanwhile waits for all of them.
TOGETHER, VERDICTS = 8, 4
#: How many ranges with the first rows after a pause go before others but verdicts: people wait for those, too.
FIRST = 2
#: Ranges of the partitions that hold most, written first while everything is full: nothing is read meanwhile, and small
#: ranges would free little.
LARGEST = 2


def is_full(states: Collection[PartitionState], settings: SinkSettings) -> bool:
    """Return whether so much is collected that it must be written before more is read."""
    rows, memory = sum(state.rows for state in states), sum(state.memory for state in states)
    return rows >= PRESSURE * settings.flush_rows or memory >= PRESSURE * RANGE_BYTES


def _flush_s(state: PartitionState, settings: SinkSettings) -> float:
    """Return the time after which a range of the partition is written; each costs inserts, however few its rows.

    People wait for rows: for those of live topics always, for others after a pause, as a deep window begins. Heartbeats
    and dead letters have none, and nothing is late for want of one.
    """
    bulk_s = max(settings.flush_s, settings.bulk_flush_s)
    if state.rows and (state.table.live or _is_first(state, settings)):
        wait_s = settings.flush_s if state.table.live else SOON * settings.flush_s
        return min(bulk_s, state.rows_since - state.since + wait_s)
    return max(bulk_s, min(2 * bulk_s, WINDOWS_S)) if state.table.topic in WINDOWS else bulk_s


def _is_first(state: PartitionState, settings: SinkSettings) -> bool:
    """Return whether the partition of a bulk topic holds the first rows after a pause."""
    return not state.table.live and state.rows > 0 and state.pause_s >= max(settings.flush_s, settings.bulk_flush_s)


def _share(state: PartitionState, settings: SinkSettings) -> float:
    """Return how much the partition holds, in ranges."""
    return max(state.rows / settings.flush_rows, state.memory / RANGE_BYTES)


def next_to_write(states: Collection[PartitionState], settings: SinkSettings, now: float) -> list[PartitionState]:
    """Return the partitions to cut a range of: verdicts, which people and alerts wait for, first rows after a pause,
    then those that are due longest.

    `now`: monotonic, s.
    """
    full = is_full(states, settings)
    due = [
        state
        for state in states
        if state.due(now, settings.flush_rows, _flush_s(state, settings))
        or (full and state.entries and state.intent is None and state.deferred is None)
    ]
    due.sort(key=lambda state: state.since + _flush_s(state, settings))  # so bulk ranges do not go before live ones
    chosen = [state for state in due if state.table.topic in AHEAD][:VERDICTS]
    chosen += [state for state in due if _is_first(state, settings)][:FIRST]
    if full:
        chosen += nlargest(LARGEST, _without(due, chosen), key=lambda state: _share(state, settings))
    return [*chosen, *_without(due, chosen)][:TOGETHER]


def _without(states: Iterable[PartitionState], chosen: Iterable[PartitionState]) -> list[PartitionState]:
    taken = set(map(id, chosen))
    return [state for state in states if id(state) not in taken]
