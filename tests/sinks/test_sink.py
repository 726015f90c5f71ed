"""The sink's loop: how many records it takes before it writes."""

from types import SimpleNamespace

import pytest

from drumline.infra.config.settings import Settings
from drumline.schemas.codec import Codec
from drumline.schemas.topics import Topic
from drumline.sinks.ranges.disposition import OBJECT_BYTES, Record
from drumline.sinks.ranges.partition import RANGE_BYTES, PartitionState
from drumline.sinks.ranges.write_order import PRESSURE
from drumline.sinks.sink import Sink
from drumline.sinks.tables.tables import table


@pytest.fixture
def waiting():
    """A sink and the offsets that wait in its client; `size`: of each record."""
    offsets, size = list(range(1_000)), [1]
    state = PartitionState(table(Topic.PROCESS), 0, "id", 0, opened=True, compacted=True)

    def poll(wait_s):
        place = Topic.PROCESS.value, 0
        return Record(*place, offsets.pop(0), b"k", b"x" * size[0], 1_000, []) if offsets else None

    kafka = SimpleNamespace(states={(Topic.PROCESS.value, 0): state}, poll=poll, reader=None)
    sink = Sink(Settings(), kafka, SimpleNamespace(), lambda: None, Codec(), lambda: True)
    sink._intake._guard = lambda *_: None
    yield SimpleNamespace(sink=sink, offsets=offsets, size=size)
    sink._cycle.close()
    sink._unreadable.close()


def test_all_that_waits_is_taken_before_the_next_ranges_are_written(waiting):
    """Else a verdict behind them would wait for a round of writing for each."""
    waiting.sink._worked_s = 60.0
    waiting.sink._collect()
    assert not waiting.offsets


def test_no_more_is_taken_than_memory_allows(waiting):
    waiting.sink._worked_s, waiting.size[0] = 60.0, 1 << 20
    waiting.sink._collect()
    assert 1_000 - len(waiting.offsets) == (PRESSURE * RANGE_BYTES) >> 20


def test_short_records_count_with_the_memory_of_their_objects(waiting, monkeypatch):
    """200,000 of one row each, as many as two ranges have rows, were 1.4 GB beside 60 MB of bytes."""
    monkeypatch.setattr("drumline.sinks.ranges.write_order.PRESSURE", 0.1)
    waiting.sink._worked_s = 60.0
    waiting.sink._collect()
    assert 1_000 - len(waiting.offsets) == -(-RANGE_BYTES // 10 // (OBJECT_BYTES + 2))
