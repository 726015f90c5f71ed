"""The order in which ranges are written when there are more than ClickHouse takes at once."""

import pytest

from drumline.infra.clickhouse.replicas import BEHIND_S
from drumline.infra.config.settings import SinkSettings
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.write_order import (
    FIRST,
    LARGEST,
    SOON,
    TOGETHER,
    VERDICTS,
    WINDOWS,
    WINDOWS_S,
    next_to_write,
)
from drumline.sinks.tables.tables import TABLES, table

NOW = 100.0


@pytest.fixture
def flooded():
    """All partitions of all topics have records, so that a round of all would take seconds; verdicts came last."""
    tables = [table for table in TABLES if table.topic is not Topic.HANG]
    states = [
        PartitionState(table, number, "id", 0, opened=True, rows_at=NOW - 21)
        for number in range(24)
        for table in tables
    ]
    states.sort(key=lambda s: (s.table.topic is Topic.STRAGGLER, s.table.topic in WINDOWS, not s.table.live))
    for number, state in enumerate(states):
        arrive(state, NOW - 20 + number / len(states))
    return states


def arrive(state, at_s, rows=1):
    record = Record(state.table.topic, state.partition, state.next_offset, b"k", None, 1_000, [])
    state.take(RangeEntry(record, 1, None, Disposition.STORED if rows else Disposition.EMPTY, rows=rows), at_s)


def test_a_verdict_is_written_at_once_however_many_partitions_wait(flooded):
    chosen = next_to_write(flooded, SinkSettings(), NOW)
    assert len(chosen) == TOGETHER, "what comes meanwhile waits for few"
    assert [state.table.topic for state in chosen[:VERDICTS]] == [Topic.STRAGGLER] * VERDICTS


def test_a_flood_of_verdicts_does_not_hold_up_rows(flooded):
    """Every partition is written, those that waited longest first."""
    written = []
    while chosen := next_to_write(flooded, SinkSettings(), NOW):
        for state in chosen:
            state.cut(1_000, NOW - 20)
            written.append((state.table.topic, state.partition))
            if state.table.topic is Topic.STRAGGLER and len(written) < 400:
                arrive(state, NOW - 9)
    rows = [place for place in written[:400] if place[0] != Topic.STRAGGLER]
    assert len(rows) >= 200
    assert rows == [(state.table.topic, state.partition) for state in flooded][: len(rows)]


def test_while_all_is_full_the_largest_ranges_are_written_first(flooded):
    large = next(state for state in flooded[::-1] if state.table.topic is Topic.KERNEL)
    large.rows = 10_000
    chosen = next_to_write(flooded, SinkSettings(flush_rows=1_000), NOW)
    assert large in chosen[: VERDICTS + LARGEST]


@pytest.mark.parametrize("topic", [Topic.PROCESS, Topic.STEP, Topic.STRAGGLER, Topic.HANG])
def test_what_people_and_alerts_wait_for_is_written_after_a_second(topic):
    assert is_collecting(topic, 0.9)
    assert not is_collecting(topic, 1.0)


@pytest.mark.parametrize("topic", [Topic.KERNEL, Topic.MEMCPY, Topic.LATENESS, Topic.DEVICE])
def test_bulk_topics_collect_for_ten_seconds_or_until_a_range_is_full(topic):
    assert is_collecting(topic, 9.9)
    assert not is_collecting(topic, 10.0)
    assert not is_collecting(topic, 0.0, flush_rows=1)


@pytest.mark.parametrize("topic", [Topic.KERNEL_FREQUENCY, Topic.MEMCPY_BANDWIDTH])
def test_rolling_windows_collect_twice_as_long_and_no_replica_looks_behind_meanwhile(topic):
    assert is_collecting(topic, 19.9)
    assert not is_collecting(topic, 20.0)
    assert not is_collecting(topic, 0.0, flush_rows=1)
    assert WINDOWS_S < BEHIND_S


@pytest.mark.parametrize(("bulk_s", "windows_s"), [(0.05, 0.1), (5.0, 10.0), (15.0, 20.0), (25.0, 25.0)])
def test_rolling_windows_collect_no_longer_than_a_replica_may_be_behind_unless_all_topics_do(bulk_s, windows_s):
    settings = SinkSettings(bulk_flush_s=bulk_s, flush_s=min(bulk_s, 0.5))
    state = PartitionState(table(Topic.KERNEL_FREQUENCY), 0, "id", 0, opened=True, rows_at=NOW)
    arrive(state, NOW)
    assert next_to_write([state], settings, NOW + 0.99 * windows_s) == []
    assert next_to_write([state], settings, NOW + 1.01 * windows_s) == [state]


def test_after_a_pause_the_first_rows_of_a_bulk_topic_are_written_soon_and_the_next_are_not():
    assert is_collecting(Topic.KERNEL, SOON - 0.1, pause_s=10.0)
    assert not is_collecting(Topic.KERNEL, SOON + 0.1, pause_s=10.0)
    assert is_collecting(Topic.KERNEL, 9.9, pause_s=9.9)
    assert not is_collecting(Topic.KERNEL, 0.15, pause_s=10.0, flush_s=0.1)


def test_first_rows_after_a_pause_go_before_what_waits_longer_but_for_verdicts(flooded):
    """A window of many ranks begins as they all answer: their records fill the sink's live topics."""
    deep = [state for state in flooded if state.table.topic is Topic.KERNEL][:3]
    for state in deep:
        state.cut(1_000, NOW - 20)
        state.rows_at = NOW - 15
        arrive(state, NOW - 1)
    chosen = next_to_write(flooded, SinkSettings(), NOW)
    assert [state.table.topic for state in chosen[:VERDICTS]] == [Topic.STRAGGLER] * VERDICTS
    assert chosen[VERDICTS : VERDICTS + FIRST] == deep[:FIRST]
    assert all(state.table.live for state in chosen[VERDICTS + FIRST :])


def test_heartbeats_do_not_end_a_pause():
    """A process that was recorded in depth once has sent one a second since."""
    state = PartitionState(table(Topic.KERNEL), 0, "id", 0, opened=True, rows_at=NOW - 12)
    for age_s in range(9, 1, -1):
        arrive(state, NOW - age_s, rows=0)
    assert next_to_write([state], SinkSettings(), NOW) == [], "heartbeats alone are no hurry"
    arrive(state, NOW - 1)
    assert next_to_write([state], SinkSettings(), NOW + SOON - 1.1) == [], "counted from the first rows"
    assert next_to_write([state], SinkSettings(), NOW + SOON - 0.9) == [state]
    state.cut(10**6, NOW)
    arrive(state, NOW, rows=0)
    arrive(state, NOW)
    assert next_to_write([state], SinkSettings(), NOW + 9.9) == []


def test_heartbeats_of_a_live_topic_wait_for_rows_or_as_long_as_bulk_topics():
    state = PartitionState(table(Topic.STEP), 0, "id", 0, opened=True)
    for age_s in (9, 5):
        arrive(state, NOW - age_s, rows=0)
    assert next_to_write([state], SinkSettings(), NOW) == []
    assert next_to_write([state], SinkSettings(), NOW + 1) == [state]
    arrive(state, NOW - 2)
    assert next_to_write([state], SinkSettings(), NOW - 1.1) == [], "collected as long as without heartbeats"
    assert next_to_write([state], SinkSettings(), NOW - 0.9) == [state]
    state.cut(10**6, NOW)
    arrive(state, NOW, rows=0)
    assert next_to_write([state], SinkSettings(), NOW + 9.9) == []


def test_a_pause_begins_with_the_last_rows_not_when_their_range_was_cut():
    state = PartitionState(table(Topic.KERNEL), 0, "id", 0, opened=True, rows_at=NOW - 30)
    arrive(state, NOW - 22)
    state.cut(1, NOW - 11)
    arrive(state, NOW - 2)
    assert next_to_write([state], SinkSettings(), NOW) == [state]


def test_bulk_topics_never_wait_for_less_than_the_others():
    assert is_collecting(Topic.KERNEL, 59.0, flush_s=60.0)


def is_collecting(topic, age_s, pause_s=0.0, **settings):
    """Return whether what came `age_s` ago is not written yet; the record before came `pause_s` before that."""
    state = PartitionState(table(topic), 0, "id", 0, opened=True, rows_at=NOW - age_s - pause_s)
    arrive(state, NOW - age_s)
    return not next_to_write([state], SinkSettings(**settings), NOW)


def test_a_range_that_clickhouse_rejects_is_not_cut_again(flooded):
    first = flooded[0]
    first.deferred = first.cut(1_000, NOW)
    arrive(first, NOW - 20)
    assert next_to_write([first], SinkSettings(flush_rows=1), NOW) == []
