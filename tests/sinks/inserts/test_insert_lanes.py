"""Two inserts at a time: each range once, rows before ledger, and no failure is lost, whichever lane it happens in."""

import threading
import time

import pytest

from drumline.infra.clickhouse.client import PermanentError, TransientError
from drumline.schemas.topics import Topic
from drumline.sinks.inserts import insert_lanes as writers
from drumline.sinks.inserts.insert_lanes import LANES, InsertLanes
from drumline.sinks.inserts.kernel_names import KernelNames
from drumline.sinks.ranges.offset_ranges import OffsetRange
from drumline.sinks.ranges.pending_range import PendingRange, RangeStage
from drumline.sinks.tables.tables import table

KERNEL = table(Topic.KERNEL)


class FakeWriter:
    """Takes 20 ms an insert. `fails`: number of the partition -> what its rows end with."""

    done, fails = None, None

    def __init__(self, client, database, names):
        pass

    def insert_rows(self, pending):
        time.sleep(0.02)
        if error := self.fails.get(pending.range.partition):
            raise error
        self.done.append(("rows", pending.range.partition))
        return 10

    def insert_ledger(self, pending):
        self.done.append(("ledger", pending.range.partition))


class Client:
    closed = 0

    def close(self):
        Client.closed += 1


@pytest.fixture
def lanes(monkeypatch):
    monkeypatch.setattr(FakeWriter, "done", [])
    monkeypatch.setattr(FakeWriter, "fails", {})
    monkeypatch.setattr(Client, "closed", 0)
    monkeypatch.setattr(writers, "RangeWriter", FakeWriter)
    created = InsertLanes(Client, "gpu", KernelNames())
    yield created
    created.close()


def ranges(count):
    return [
        PendingRange(KERNEL, OffsetRange("id", number, 0, 9), [], RangeStage.INTENT_COMMITTED)
        for number in range(count)
    ]


def test_each_range_is_written_once_rows_first(lanes):
    pending = ranges(9)
    assert lanes.write(pending, lambda: False) is True
    for number in range(9):
        inserted = [kind for kind, partition in FakeWriter.done if partition == number]
        assert inserted == ["rows", "ledger"]
    assert lanes.rows == 90
    assert lanes.write(pending, lambda: False) is True
    assert len(FakeWriter.done) == 18, "what is written is left alone"


@pytest.mark.parametrize("failing", [0, 1, 2, 4])
def test_a_failure_in_either_lane_is_raised_when_the_other_has_ended(lanes, failing):
    pending = ranges(5)
    FakeWriter.fails[failing] = TransientError("away")
    with pytest.raises(TransientError, match="away"):
        lanes.write(pending, lambda: False)
    assert pending[failing].stage == RangeStage.INTENT_COMMITTED
    assert all(p.stage in (RangeStage.INTENT_COMMITTED, RangeStage.LEDGER_INSERTED) for p in pending)
    before = len(FakeWriter.done)
    time.sleep(0.1)
    assert len(FakeWriter.done) == before, "nothing is under way any more"
    FakeWriter.fails.clear()
    assert lanes.write(pending, lambda: False) is True
    assert sorted(partition for kind, partition in FakeWriter.done if kind == "rows") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("order", [(PermanentError, TransientError), (TransientError, PermanentError)])
def test_fatal_errors_are_raised_before_those_that_are_retried(lanes, order):
    FakeWriter.fails = {number: kind(kind.__name__) for number, kind in enumerate(order)}
    with pytest.raises(PermanentError):
        lanes.write(ranges(2), lambda: False)


def test_ranges_that_failed_at_another_step_go_on_there(lanes):
    pending = ranges(1)
    pending[0].stage = RangeStage.ROWS_INSERTED
    assert lanes.write(pending, lambda: False)
    assert FakeWriter.done == [("ledger", 0)]


def test_when_the_turn_is_over_each_lane_ends_with_what_it_has_begun(lanes):
    pending = ranges(7)
    assert lanes.write(pending, lambda: True) is False
    assert sum(p.stage == RangeStage.LEDGER_INSERTED for p in pending) == LANES
    while not lanes.write(pending, lambda: True):
        pass
    assert lanes.rows == 70


def test_connections_are_opened_again_after_a_disconnect_and_threads_end(lanes):
    before = threading.active_count()
    lanes.write(ranges(4), lambda: False)
    assert threading.active_count() <= before + LANES
    lanes.disconnect()
    lanes.write(ranges(4), lambda: False)
    lanes.close()
    assert Client.closed == 2 * LANES
    assert threading.active_count() <= before


def test_a_range_that_clickhouse_rejects_holds_up_no_other(lanes):
    pending = ranges(5)
    FakeWriter.fails = {1: TransientError("out of memory", 241), 3: PermanentError("a constraint", 469)}
    assert lanes.write(pending, lambda: False) is True
    assert sorted((p.range.partition, error.code) for p, error in lanes.rejected) == [(1, 241), (3, 469)]
    assert [p.stage == RangeStage.LEDGER_INSERTED for p in pending] == [True, False, True, False, True]
    assert lanes.write(pending, lambda: False) is True
    assert pending[1].rejection.attempts == 2


def test_an_insert_without_an_answer_may_still_succeed(lanes):
    pending = ranges(1)
    FakeWriter.fails = {0: TransientError("code 241 first", 241)}
    lanes.write(pending, lambda: False)
    FakeWriter.fails = {0: TransientError("read timed out")}
    with pytest.raises(TransientError):
        lanes.write(pending, lambda: False)
    assert pending[0].unanswered
    assert pending[0].rejection is None, "the time until it is split counts from here"
