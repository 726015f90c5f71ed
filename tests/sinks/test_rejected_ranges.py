"""A table that takes no rows at all must not move a topic to its dead letters."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from drumline.infra.clickhouse.client import PermanentError, TransientError
from drumline.infra.clickhouse.error_codes import ErrorCode
from drumline.infra.config.settings import Settings
from drumline.infra.telemetry.health import Health
from drumline.schemas.batch import Batch
from drumline.schemas.topics import Topic
from drumline.sinks import rejected_ranges
from drumline.sinks.inserts.stored_check import StoredRows
from drumline.sinks.kafka.dead_letters import DeadLetterProducer
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.failed_insert import LARGE_BLOCK, ROLLUP_ATTEMPTS, ROLLUP_S
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.partition import PartitionState
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage
from drumline.sinks.rejected_ranges import RejectedRanges
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts, observe

KERNEL, RUN = table(Topic.KERNEL), 5
OUT_OF_MEMORY = ErrorCode.MEMORY_LIMIT_EXCEEDED
ERROR = PermanentError("kernels: no such value: secret (VIOLATED_CONSTRAINT)", 469)


@pytest.fixture
def ranges(monkeypatch):
    stored = SimpleNamespace(rows=0, in_kafka=True)
    monkeypatch.setattr(rejected_ranges, "find_rows", lambda *_: StoredRows(stored.rows, 0))
    monkeypatch.setattr(rejected_ranges, "read_again", lambda *_: stored.in_kafka)
    kafka = SimpleNamespace(reader=lambda: nullcontext(), pause_partition=lambda state: None)
    monkeypatch.setattr(rejected_ranges, "closing", lambda reader: reader)
    monkeypatch.setattr(rejected_ranges, "FLOOD_RUN", RUN)
    resolver = RejectedRanges(Settings(), kafka, lambda: None, SinkCounts())
    return SimpleNamespace(resolve=resolver.resolve, stored=stored)


def rejected(offset):
    entry = RangeEntry(Record(Topic.KERNEL, 0, offset, b"k", None, 0, []), 1, Batch(Topic.KERNEL, {"rows": 3}),
                       Disposition.STORED, 3)  # fmt: skip
    pending = PendingRange(KERNEL, OffsetRange("id", 0, offset, offset), [entry], RangeStage.INTENT_COMMITTED)
    pending.reject(ERROR.code, 0.0)
    return pending


def test_after_many_records_in_a_row_that_clickhouse_rejects_only_their_partition_waits(ranges):
    state = PartitionState(KERNEL, 0, "id", 0, opened=True)
    for offset in range(RUN):
        pending = ranges.resolve(state, rejected(offset), ERROR)
        assert pending.stage is RangeStage.CUT, "its dead letter is sent, then its intent committed"
        assert pending.entries[0].error[1] == "ClickHouse rejects its rows with code 469 (VIOLATED_CONSTRAINT)"
    pending = rejected(RUN)
    for _ in range(2):
        state.deferred = None  # its next attempt
        assert ranges.resolve(state, pending, ERROR) is None
        assert state.deferred is pending
        assert pending.entries[0].disposition is Disposition.STORED
    health = Health()
    observe(health, [state], 0, 0)
    assert "gpu.kernel.v1 partition 0: code 469 (VIOLATED_CONSTRAINT), 5 records in a row" in health.ready()["rejected"]


def test_a_rejected_record_that_kafka_has_removed_is_a_dead_letter_without_value(ranges):
    ranges.stored.in_kafka = False
    pending = ranges.resolve(PartitionState(KERNEL, 0, "id", 0, opened=True), rejected(0), ERROR)
    [entry] = pending.entries
    assert (pending.stage, entry.disposition) == (RangeStage.CUT, Disposition.DEAD_LETTER)
    assert entry.error[1].endswith("; Kafka has removed the record, so its value is missing")


def test_nothing_is_split_of_which_a_part_is_stored(ranges):
    state, ranges.stored.rows = PartitionState(KERNEL, 0, "id", 0, opened=True), 1
    pending = rejected(0)
    assert ranges.resolve(state, pending, ERROR) is None
    assert state.deferred is pending
    assert not state.flows


def test_rows_that_are_all_stored_are_not_inserted_again(ranges):
    state, ranges.stored.rows = PartitionState(KERNEL, 0, "id", 0, opened=True), 3
    assert ranges.resolve(state, rejected(0), ERROR).stage is RangeStage.ROWS_INSERTED


def test_rows_that_are_all_stored_are_inserted_again_while_the_server_lacks_memory_for_rollups(ranges, monkeypatch):
    state, ranges.stored.rows = PartitionState(KERNEL, 0, "id", 0, opened=True), 3
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(rejected_ranges.time, "monotonic", lambda: clock.now)
    pending, error = rejected(0), TransientError("kernels: memory limit exceeded", OUT_OF_MEMORY)
    pending.rejection, pending.block_bytes = None, LARGE_BLOCK
    for _ in range(ROLLUP_ATTEMPTS):
        pending.reject(error.code, clock.now)
        assert ranges.resolve(state, pending, error) is None
        assert pending.stage is RangeStage.INTENT_COMMITTED
    clock.now += ROLLUP_S
    pending.reject(error.code, clock.now)
    assert ranges.resolve(state, pending, error).stage is RangeStage.ROWS_INSERTED


def test_a_rejected_record_with_parts_is_one_dead_letter_of_all_that_would_be_stored(ranges, monkeypatch):
    parts = [rejected(0).entries[0] for _ in range(3)]
    for number, entry in enumerate(parts, 1):
        entry.record.part = number
    parts[0].disposition = Disposition.DUPLICATE
    pending = PendingRange(KERNEL, OffsetRange("id", 0, 0, 0), parts, RangeStage.INTENT_COMMITTED)
    pending.reject(ERROR.code, 0.0)
    monkeypatch.setattr(rejected_ranges, "read_again", lambda _, record: setattr(record, "value", b"all") or True)
    resolved = ranges.resolve(PartitionState(KERNEL, 0, "id", 0, opened=True), pending, ERROR)
    assert [entry.disposition for entry in resolved.entries] == ["duplicate", "dead_letter", "dead_letter"]
    sent = []
    client = SimpleNamespace(produce=lambda *_, **record: sent.append(record["value"]), flush=lambda _: 0)
    DeadLetterProducer(lambda: client).send(resolved.entries, "id")
    assert sent == [b"all"]
