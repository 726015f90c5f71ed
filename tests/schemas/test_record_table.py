"""Batches that are read as one table are what they are by themselves."""

import numpy as np
import pytest
from support.labs.sink import NOW_NS, any_batch

from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import checks_together
from drumline.schemas.bounds.limits import AHEAD_NS, PAST_NS
from drumline.schemas.codec import Codec, Received
from drumline.schemas.confluent import HEADER
from drumline.schemas.epochs import write_epoch
from drumline.schemas.errors import BadColumn, BadRecord, ForeignJob
from drumline.schemas.model import model
from drumline.schemas.record_table import BatchTable
from drumline.schemas.topics import TOPICS, Topic

CODEC = Codec()
DERIVED = {spec.topic for spec in TOPICS if spec.derived and spec.topic != Topic.TICK}
SCHEMAS = sorted(DERIVED | {Topic.KERNEL, Topic.STEP, Topic.PROGRESS})
NOW_MS = NOW_NS // 1_000_000


def values(topic, rows):
    return [CODEC.encode(any_batch(topic, count, f"p{at}", at, seed=at)) for at, count in enumerate(rows)]


@pytest.mark.parametrize("rows", [(3,), (2, 0, 4), (0, 5, 0, 0, 1), (0, 0)])
@pytest.mark.parametrize("topic", SCHEMAS)
def test_each_batch_is_what_it_is_by_itself(topic, rows):
    if not model(topic).columns and max(rows) > 1:
        pytest.skip("a record without columns has one row")
    sent = values(topic, rows)
    table = BatchTable.read(model(topic), sent, HEADER.size)
    for number, value in enumerate(sent):
        batch, now = CODEC.decode(topic, value), table.batch(number)
        shared = table.batches()[number]
        assert shared.envelope == now.envelope
        assert all(shared.columns[name].tolist() == column.tolist() for name, column in now.columns.items())
        assert CODEC.encode(table.batches()[number]) == value, "whether its columns were read before or not"
        assert shared.columns.get("none") is None
        assert now.envelope == batch.envelope
        assert now.columns.keys() == batch.columns.keys()
        for name, column in batch.columns.items():
            assert (now.columns[name].dtype, now.columns[name].tolist()) == (column.dtype, column.tolist())
            assert not now.columns[name].flags.writeable


def received(sent, **more):
    return [Received(value, NOW_MS, **more) for value in sent]


def read_together(topic, records, codec=CODEC):
    """Return records as one table; None where one is bad, or they have no unit in common."""
    try:
        opened = [codec.open(topic, record) for record in records]
        return codec.read(topic, opened) if len({record.unit for record in opened} - {None}) == 1 else None
    except BadRecord:
        return None


def lateness(**changes):
    batch = any_batch(Topic.LATENESS, 3, "p", 0)
    columns = {name: changes.pop(name, column) for name, column in batch.columns.items()}
    return CODEC.encode(Batch(Topic.LATENESS, {**batch.envelope, **changes}, columns))


def test_results_of_stages_are_read_together():
    table = read_together(Topic.LATENESS, received(values(Topic.LATENESS, (1, 4, 0))))
    assert (table.counts.tolist(), table.ends, table.rows) == ([1, 4, 0], [0, 1, 5, 5], 5)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        lateness()[:-3],
        lateness(world_size=-1),
        lateness(communicator="c" * 5_000),
        lateness(rank=np.array([0, -9, 1])),
        lateness(kind_steps=[1]),
        CODEC.encode(any_batch(Topic.STEP, 1, "p", 0)),
    ],
)
def test_one_that_is_bad_is_found_by_itself(bad):
    good = values(Topic.LATENESS, (1, 2))
    with pytest.raises(BadRecord):
        CODEC.decode(Topic.LATENESS, bad, NOW_MS)
    for at in range(3):
        assert read_together(Topic.LATENESS, received([*good[:at], bad, *good[at:]])) is None


def test_indices_are_those_of_each_batch():
    batches = [any_batch(Topic.LATENESS, 2, f"p{at}", at) for at in range(2)]
    for number, batch in enumerate(batches, 1):
        batch.envelope["hosts"] = [f"host-{at}" for at in range(40 * number)]
        batch.columns["host"] = np.array([40 * number - 1, 0], "<u4")
    sent = [CODEC.encode(batch) for batch in batches]
    assert BatchTable.read(model(Topic.LATENESS), sent, HEADER.size).columns["host"].tolist() == [39, 0, 79, 0]
    spoiled = sent[0].replace(np.array([39, 0], "<u4").tobytes(), np.array([40, 0], "<u4").tobytes())
    assert spoiled != sent[0]
    with pytest.raises(BadColumn):
        BatchTable.read(model(Topic.LATENESS), [spoiled, sent[1]], HEADER.size)


def test_a_result_from_the_future_is_read_by_itself():
    good = values(Topic.LATENESS, (1, 2))
    ahead = [write_epoch(NOW_MS + 10**9)]
    assert read_together(Topic.LATENESS, received(good, headers=ahead)) is None
    assert read_together(Topic.LATENESS, received(good, headers=[write_epoch(NOW_MS)])) is not None


def test_a_signature_is_checked_of_each():
    class Guard:
        def check(self, topic, key, value, headers, job):
            if key == b"other":
                raise ForeignJob("no signature", topic=topic, field="job")

    codec, good = Codec(guard=Guard()), values(Topic.LATENESS, (1, 2))
    records = received(good, key=b"job")
    assert read_together(Topic.LATENESS, records, codec) is not None
    assert read_together(Topic.LATENESS, [records[0], records[1]._replace(key=b"other")], codec) is None


def test_topics_whose_rows_are_bounded_together_are_not_read_as_one():
    assert not checks_together(Topic.STRAGGLER)
    assert read_together(Topic.STRAGGLER, received(values(Topic.STRAGGLER, (1, 1)))) is None


@pytest.mark.parametrize(
    ("age_ns", "inside"), [(PAST_NS - 10**9, True), (PAST_NS + 10**9, False), (-2 * AHEAD_NS, False)]
)
def test_rows_are_as_old_as_the_record_of_each_allows(age_ns, inside):
    times = [NOW_MS, NOW_MS + PAST_NS // 2_000_000]
    batches = [any_batch(Topic.STEP, 2, "p", at) for at in range(2)]
    for at, (batch, ms) in enumerate(zip(batches, times, strict=True)):
        batch.envelope["base_time_ns"] = NOW_MS * 10**6
        for name in ("start_ns", "gpu_start_ns"):
            batch.columns[name] = np.full(2, ms * 10**6 - age_ns * at)
    records = [Received(CODEC.encode(batch), ms) for batch, ms in zip(batches, times, strict=True)]
    table = read_together(Topic.STEP, records)
    assert (table is not None) is inside
    if not inside:
        with pytest.raises(BadRecord):
            CODEC.decode(Topic.STEP, records[1].value, times[1])
