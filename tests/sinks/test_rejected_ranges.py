"""A table that takes no rows at all must not move a topic to its dead letters."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from drumline.infra.clickhouse.client import PermanentError
from drumline.infra.config.settings import Settings, SinkSettings
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.sinks import rejected_ranges
from drumline.sinks.inserts.stored_check import StoredRows
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState, PendingRange, RangeStage
from drumline.sinks.ranges.record import Disposition, RangeEntry, Record
from drumline.sinks.rejected_ranges import RejectedRanges
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

KERNEL, RUN = table(Topic.KERNEL), 5
ERROR = PermanentError("kernels: no such value: secret (VIOLATED_CONSTRAINT)", 469)


@pytest.fixture
def ranges(monkeypatch):
    stored = SimpleNamespace(rows=0)
    monkeypatch.setattr(rejected_ranges, "find_rows", lambda *_: StoredRows(stored.rows, 0))
    monkeypatch.setattr(rejected_ranges, "read_value", lambda *_: b"value")
    kafka = SimpleNamespace(reader=lambda: nullcontext(), pause_partition=lambda state: None)
    monkeypatch.setattr(rejected_ranges, "closing", lambda reader: reader)
    resolver = RejectedRanges(Settings(sink=SinkSettings(dead_letter_run=RUN)), kafka, lambda: None, SinkCounts())
    return SimpleNamespace(resolve=resolver.resolve, stored=stored)


def rejected(offset):
    entry = RangeEntry(Record(Topic.KERNEL, 0, offset, b"k", None, 0, []), 1, Batch(Topic.KERNEL, {"rows": 3}),
                       Disposition.STORED, 3)  # fmt: skip
    pending = PendingRange(KERNEL, OffsetRange("id", 0, offset, offset), [entry], RangeStage.INTENT_COMMITTED)
    pending.reject(ERROR.code, 0.0)
    return pending


def test_records_in_a_row_that_clickhouse_rejects_end_the_sink(ranges):
    state = PartitionState(KERNEL, 0, "id", 0, opened=True)
    for offset in range(RUN):
        pending = ranges.resolve(state, rejected(offset), ERROR)
        assert pending.stage is RangeStage.CUT, "its dead letter is sent, then its intent committed"
        assert pending.entries[0].error[1] == "ClickHouse rejects its rows with code 469 (VIOLATED_CONSTRAINT)"
    with pytest.raises(PermanentError, match="partition 0: 5 records in a row"):
        ranges.resolve(state, rejected(RUN), ERROR)


def test_nothing_is_split_of_which_a_part_is_stored(ranges):
    state, ranges.stored.rows = PartitionState(KERNEL, 0, "id", 0, opened=True), 1
    pending = rejected(0)
    assert ranges.resolve(state, pending, ERROR) is None
    assert state.deferred is pending
    assert not state.flows


def test_rows_that_are_all_stored_are_not_inserted_again(ranges):
    state, ranges.stored.rows = PartitionState(KERNEL, 0, "id", 0, opened=True), 3
    assert ranges.resolve(state, rejected(0), ERROR).stage is RangeStage.ROWS_INSERTED
