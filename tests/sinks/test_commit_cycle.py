"""Open ranges: one a partition, also while ClickHouse rejects one and memory is short."""

import time
from types import SimpleNamespace

import pytest

from drumline.infra.clickhouse.client import TransientError
from drumline.infra.config.settings import Settings
from drumline.schemas.topics import Topic
from drumline.sinks.commit_cycle import CommitCycle
from drumline.sinks.ranges.disposition import Disposition, RangeEntry, Record
from drumline.sinks.ranges.intent import read_metadata
from drumline.sinks.ranges.offset_ranges import Intervals
from drumline.sinks.ranges.partition import RANGE_BYTES, PartitionState
from drumline.sinks.ranges.pending_range import RangeStage
from drumline.sinks.tables.tables import table
from drumline.sinks.telemetry import SinkCounts

TOPIC = Topic.STRAGGLER.value  # whose table needs no history


class Lanes:
    """Rejects the ranges with offset 0 while `rejects`; stores the others."""

    def __init__(self):
        self.rows, self.rejects, self.rejected, self.stored = 0, True, [], []

    def write(self, ranges, over):
        self.rejected = []
        for pending in ranges:
            if self.rejects and pending.range.first == 0:
                pending.reject(241, 0.0)
                self.rejected.append((pending, TransientError("too large (MEMORY_LIMIT_EXCEEDED)", 241)))
            else:
                pending.stage = RangeStage.LEDGER_INSERTED
                self.stored.append((pending.range.first, pending.range.last))
        return not self.rejected

    def close(self):
        pass


@pytest.fixture
def cycle():
    state = PartitionState(table(Topic.STRAGGLER), 0, "id", 0, opened=True)
    commits = []
    kafka = SimpleNamespace(
        states={(TOPIC, 0): state},
        commit=lambda places: commits.extend((offset, metadata) for _, offset, metadata, _ in places),
        holds=lambda _: True,
        topic_ids=lambda _: {TOPIC: "id"},
        pause_partition=lambda _: None,
    )
    created = CommitCycle(Settings(), kafka, SimpleNamespace(send=lambda *_: 0), lambda: None, SinkCounts())
    created._lanes.close()
    created._lanes = Lanes()
    yield SimpleNamespace(run=created, state=state, commits=commits, lanes=created._lanes)
    created.close()


def collect(state, sizes):
    for size in sizes:
        record = Record(TOPIC, 0, state.next_offset, b"k", None, time.time_ns() // 1_000_000, [])
        state.take(RangeEntry(record, size, None, Disposition.STORED, rows=1), 0.0)


def never():
    return False


def test_no_second_range_of_a_partition_is_cut_beside_the_one_that_clickhouse_rejects(cycle):
    collect(cycle.state, [RANGE_BYTES // 4] * 16)
    for attempt in range(12):
        cycle.lanes.rejects = attempt < 6
        cycle.state.retry.at = 0.0
        cycle.run.cut(never)
        assert len(cycle.run.ranges) <= 1
        if cycle.run.ranges:
            cycle.run.advance(never)
    offsets = [offset for offset, _ in cycle.commits]
    assert offsets == sorted(offsets), "no commit goes back"
    for offset, metadata in cycle.commits:
        _, intent = read_metadata(metadata, 0, offset)
        assert intent is None or offset == intent.range.first
    assert [first for first, _ in cycle.lanes.stored] == [0, *(last + 1 for _, last in cycle.lanes.stored[:-1])]
    assert offsets[-1] == cycle.state.next_offset == 16


def test_two_open_ranges_of_a_partition_are_an_error(cycle):
    collect(cycle.state, [1, 1])
    first = cycle.state.cut(1, 0.0)
    cycle.run.ranges = [(cycle.state, first), (cycle.state, cycle.state.cut(1, 0.0))]
    with pytest.raises(AssertionError, match="two open ranges"):
        cycle.run.advance(never)
    assert not cycle.commits


def test_ranges_that_clickhouse_rejects_are_bounded_by_their_bytes(cycle):
    collect(cycle.state, [RANGE_BYTES, RANGE_BYTES])
    cycle.state.deferred = cycle.state.cut(1_000, 0.0)
    assert not cycle.run.deferred_are_full
    cycle.state.deferred.entries.extend(cycle.state.entries)
    assert cycle.run.deferred_are_full


def test_what_is_known_of_producers_is_bounded_over_all_partitions(cycle, monkeypatch):
    """Each of 36 partitions kept 20,000; the largest are read again."""
    monkeypatch.setattr("drumline.sinks.commit_cycle.MAX_IDENTITIES", 100)
    peers = [PartitionState(table(Topic.KERNEL), number, "id", 0, opened=True) for number in range(3)]
    for number, peer in enumerate(peers):
        cycle.run._kafka.states[Topic.KERNEL.value, number] = peer
        peer.duplicates.history.update({(str(i), ""): Intervals() for i in range((number + 1) * 25)})
    collect(cycle.state, [1])
    cycle.lanes.rejects = False
    cycle.run.cut(never)
    cycle.run.advance(never)
    assert [len(peer.duplicates.history) for peer in peers] == [25, 50, 0]
