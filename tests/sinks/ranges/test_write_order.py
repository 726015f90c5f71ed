"""The order in which ranges are written when there are more than ClickHouse takes at once."""

import pytest

from drumline.infra.config.settings import SinkSettings
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.record import Disposition, RangeEntry, Record
from drumline.sinks.ranges.write_order import TOGETHER, VERDICTS, next_to_write
from drumline.sinks.tables.tables import TABLES

NOW = 100.0


@pytest.fixture
def flooded():
    """All partitions of all topics have records, so that a round of all would take seconds; verdicts came last."""
    states = [PartitionState(table, number, "id", 0, opened=True) for number in range(24) for table in TABLES]
    states.sort(key=lambda state: state.table.topic is Topic.STRAGGLER)
    for number, state in enumerate(states):
        arrive(state, NOW - 10 + number / len(states))
    return states


def arrive(state, at_s):
    record = Record(state.table.topic, state.partition, state.next_offset, b"k", None, 1_000, [])
    state.take(RangeEntry(record, 1, None, Disposition.STORED, rows=1), at_s)


def test_a_verdict_is_written_at_once_however_many_partitions_wait(flooded):
    chosen = next_to_write(flooded, SinkSettings(), NOW)
    assert len(chosen) == TOGETHER, "what comes meanwhile waits for few"
    assert [state.table.topic for state in chosen[:VERDICTS]] == [Topic.STRAGGLER] * VERDICTS


def test_a_flood_of_verdicts_does_not_hold_up_rows(flooded):
    """Every partition is written, those that waited longest first."""
    written = []
    while chosen := next_to_write(flooded, SinkSettings(), NOW):
        for state in chosen:
            state.cut(1_000, NOW - 10)
            written.append((state.table.topic, state.partition))
            if state.table.topic is Topic.STRAGGLER and len(written) < 400:
                arrive(state, NOW - 10)
    rows = [place for place in written[:400] if place[0] != Topic.STRAGGLER]
    assert len(rows) >= 200
    assert rows == [(state.table.topic, state.partition) for state in flooded][: len(rows)]


def test_a_range_that_clickhouse_rejects_is_not_cut_again(flooded):
    first = flooded[0]
    first.deferred = first.cut(1_000, NOW)
    arrive(first, NOW - 10)
    assert next_to_write([first], SinkSettings(flush_rows=1), NOW) == []
