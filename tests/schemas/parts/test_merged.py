"""Parts in one table: each is what was merged, byte by byte; bad ones are found as they are alone."""

import json
import tracemalloc

import numpy as np
import pytest
from support.labs.sink import NOW_NS, any_batch
from support.older_schema import registry_with_older
from support.tables import merged_record, parts_of

from drumline.schemas.avro_read import number_behind
from drumline.schemas.batch import Batch
from drumline.schemas.bounds.check import check
from drumline.schemas.bounds.limits import bounds
from drumline.schemas.bounds.merged_check import is_inside
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER
from drumline.schemas.envelope import JOB_ENVELOPE
from drumline.schemas.errors import (
    BadColumn,
    BadEnvelope,
    BadRecord,
    ForeignJob,
    OutOfBounds,
    UnknownSchema,
    Unsigned,
    WrongSchema,
)
from drumline.schemas.model import model
from drumline.schemas.parts.encoded import encoded
from drumline.schemas.parts.joining import JOINED_BY_AGENTS, MOST_PARTS
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.registry import LockFileRegistry
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic

CODEC = Codec()
KEY = b"k" * 32
APPENDED_MS = NOW_NS // 1_000_000 + 60_000
TOPICS = sorted(JOINED_BY_AGENTS)


def batches(topic, count=3):
    """Parts that differ: of 0, 1, 2, ... rows."""
    return [whole(any_batch(topic, number, f"p{number}", number)) for number in range(count)]


def whole(batch):
    """The batch with all fields of its schema."""
    return CODEC.decode(batch.topic, CODEC.encode(batch), bounded=False)


def values(topic, count=3):
    return [CODEC.encode(batch) for batch in batches(topic, count)]


def merged_of(topic, sent):
    return parts_of(CODEC, topic, CODEC.merge(topic, sent)).merged


def same(batch, other):
    assert batch.topic == other.topic
    assert batch.envelope == other.envelope
    assert batch.columns.keys() == other.columns.keys()
    for name, column in batch.columns.items():
        assert column.dtype == other.columns[name].dtype
        assert column.tobytes() == other.columns[name].tobytes()


@pytest.mark.parametrize("topic", TOPICS)
def test_each_part_is_what_was_merged(topic):
    sent = values(topic, 7)
    parts = parts_of(CODEC, topic, CODEC.merge(topic, sent))
    assert parts.values == encoded(parts.merged, sent[0][: HEADER.size]) == sent
    for part, value in enumerate(sent):
        same(parts.merged.batch(part), CODEC.decode(topic, value))
    assert parts.merged.rows == sum(range(7))
    assert parts.merged.ranks.tolist() == [b.envelope["rank"] for b in batches(topic, 7) for _ in range(b.rows)]


@pytest.mark.parametrize("topic", TOPICS)
def test_the_limits_of_every_dtype_are_merged(topic):
    dice = np.random.default_rng(3)
    batch = any_batch(topic, 4, "p", 0)
    for column in model(topic).columns:
        if column.dictionary:
            continue
        if column.dtype.kind == "f":
            batch.columns[column.name] = np.array([0.0, -1.5, np.inf, np.nan]).astype(column.dtype)
        else:
            low, high = np.iinfo(column.dtype).min, np.iinfo(column.dtype).max
            numbers = dice.integers(low, high, 2, dtype=column.dtype, endpoint=True)
            batch.columns[column.name] = np.array([high, low, *numbers], column.dtype)
    sent = [*values(topic, 2), CODEC.encode(batch)]
    parts = parts_of(CODEC, topic, CODEC.merge(topic, sent))
    assert parts.values == encoded(parts.merged, sent[0][: HEADER.size]) == sent


NUMBERS = [
    0,
    -1,
    1,
    63,
    64,
    -64,
    -65,
    8_191,
    8_192,
    *(sign * (1 << bit) for bit in (20, 31, 55, 62) for sign in (1, -1)),
]
TEXTS = ["", "x" * 63, "x" * 64, "é" * 100, "x" * 20_000]


@pytest.mark.parametrize("topic", [Topic.STEP, Topic.PROGRESS])
def test_numbers_and_texts_of_any_length_are_encoded_as_alone(topic):
    sent = []
    for at, number in enumerate([*NUMBERS, (1 << 63) - 1, -(1 << 63)]):
        batch, text = any_batch(topic, at % 3, "p", at), TEXTS[at % len(TEXTS)]
        batch.envelope |= {
            "sequence": number,
            "sent_ns": -1 - number,
            "rank": max(min(number, 2**31 - 1), -(2**31)),
            "host": text,
        }
        if topic == Topic.PROGRESS:
            batch.envelope["communicators"] = [text] * (3 if at % 3 else at % 2)
            batch.columns |= {"communicator": np.arange(batch.rows)}
        sent.append(CODEC.encode(batch))
    parts = parts_of(CODEC, topic, CODEC.merge(topic, sent)).merged
    assert encoded(parts, sent[0][: HEADER.size]) == sent


def test_what_has_no_common_schema_job_and_run_is_not_merged(tmp_path):
    now = values(Topic.DEVICE)
    registry, older = registry_with_older(Topic.DEVICE, tmp_path / "avro")
    assert Codec(registry).merge(Topic.DEVICE, now) is not None
    assert Codec(registry).merge(Topic.DEVICE, [now[0], HEADER.pack(0, older) + now[1][HEADER.size :]]) is None
    for name in ("job", "run"):
        other = any_batch(Topic.STEP, 1, "p", 0)
        other.envelope[name] = "other"
        assert CODEC.merge(Topic.STEP, [values(Topic.STEP)[1], CODEC.encode(other)]) is None
    assert CODEC.merge(Topic.STEP, [values(Topic.STEP)[1], values(Topic.STEP)[2][:-3]]) is None
    assert CODEC.merge(Topic.STEP, [b"", values(Topic.STEP)[1]]) is None


def test_topics_that_agents_do_not_join_take_no_merged_record():
    record = CODEC.encode(merged_record(model(Topic.KERNEL), 1, batches(Topic.KERNEL)))
    assert parts_of(CODEC, Topic.KERNEL, record) is None
    with pytest.raises(WrongSchema):
        CODEC.decode(Topic.KERNEL, record)


def test_parts_of_another_topic_are_rejected():
    record = CODEC.merge(Topic.STEP, values(Topic.STEP))
    with pytest.raises(WrongSchema):
        parts_of(CODEC, Topic.HOST, record)


def test_bytes_that_are_cut_anywhere_are_a_bad_record():
    record = CODEC.merge(Topic.PROGRESS, values(Topic.PROGRESS))
    for end in range(HEADER.size, len(record) - 1, 7):
        with pytest.raises(BadRecord):
            parts_of(CODEC, Topic.PROGRESS, record[:end])


@pytest.mark.parametrize("count", [-1, 0, 2, 4, MOST_PARTS + 1, 1 << 30])
def test_a_record_that_is_no_table_of_its_parts_is_rejected(count):
    record = merged_record(model(Topic.STEP), CODEC.registry.id_of(Topic.STEP), batches(Topic.STEP))
    record.envelope["parts"] = count
    with pytest.raises(BadEnvelope):
        parts_of(CODEC, Topic.STEP, CODEC.encode(record))


@pytest.mark.parametrize("number", [-1, 1, 4, 1 << 62, -(1 << 63)])
def test_numbers_of_rows_that_are_not_those_of_the_table_are_rejected(number):
    record = merged_record(model(Topic.STEP), CODEC.registry.id_of(Topic.STEP), batches(Topic.STEP))
    parts = parts_of(CODEC, Topic.STEP, CODEC.encode(record)).merged
    at = parts.layout.line["rows"] * parts.parts
    record.columns["numbers"][at] = number
    with pytest.raises(BadEnvelope):
        parts_of(CODEC, Topic.STEP, CODEC.encode(record))


@pytest.mark.parametrize("index", [-1, 1_000])
def test_an_index_beyond_the_texts_is_rejected(index):
    record = merged_record(model(Topic.STEP), CODEC.registry.id_of(Topic.STEP), batches(Topic.STEP))
    parts = parts_of(CODEC, Topic.STEP, CODEC.encode(record)).merged
    record.columns["numbers"][parts.layout.line["host"] * parts.parts] = index
    with pytest.raises(BadEnvelope):
        parts_of(CODEC, Topic.STEP, CODEC.encode(record))


@pytest.mark.parametrize("text", ["no JSON", "{}", "[1]", "[" * 10_000, '["' + "x" * 5_000 + '"]', r'["\ud800"]'])
def test_a_text_that_is_no_list_is_found(text):
    record = merged_record(model(Topic.PROGRESS), CODEC.registry.id_of(Topic.PROGRESS), batches(Topic.PROGRESS))
    at = next(at for at, known in enumerate(record.envelope["texts"]) if known.startswith("["))
    record.envelope["texts"][at] = text
    parts = parts_of(CODEC, Topic.PROGRESS, CODEC.encode(record))
    assert not is_inside(parts.merged, APPENDED_MS)
    with pytest.raises(BadRecord):
        _ = parts.values


@pytest.mark.parametrize(
    ("topic", "fields"),
    [
        (Topic.STEP, ("host", "gpu_uuid", "process_id", "source", "steps_from")),
        (Topic.STEP, ("job",)),
        (Topic.PROGRESS, ("operations",)),
    ],
)
def test_a_text_that_all_parts_use_is_rejected_before_they_are_made(topic, fields):
    long, batch = "x" * 1_900_000, whole(any_batch(topic, 0, "p", 0))
    batch.envelope |= {name: [long] if isinstance(batch.envelope[name], list) else long for name in fields}
    record = CODEC.encode(merged_record(model(topic), CODEC.registry.id_of(topic), [batch] * MOST_PARTS))
    tracemalloc.start()
    try:
        with pytest.raises(BadEnvelope, match="characters in the envelopes of its parts"):
            parts_of(CODEC, topic, record)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(record)
    finally:
        tracemalloc.stop()


def test_a_long_list_is_read_once_for_all_parts_that_have_it():
    batch = whole(any_batch(Topic.PROGRESS, 0, "p", 0))
    batch.envelope["operations"] = [f"operation {number}" for number in range(400)]
    parts = parts_of(CODEC, Topic.PROGRESS, CODEC.merge(Topic.PROGRESS, [CODEC.encode(batch)] * 9)).merged
    lists = parts.lists("operations")
    assert lists[0] == batch.envelope["operations"]
    assert all(known is lists[0] for known in lists)


@pytest.mark.parametrize("topic", TOPICS)
def test_parts_within_their_bounds_are_inside(topic):
    assert is_inside(merged_of(topic, values(topic, 7)), APPENDED_MS)
    assert is_inside(merged_of(topic, values(topic, 1)), APPENDED_MS)


def outside(topic):
    """(batch, what is wrong) for each field and column, beyond both ends."""
    of = bounds(topic)
    for name, kind in model(topic).envelope.items():
        if kind in ("int", "long") and name != "rows":
            for number in (of[name].low - 1, of[name].high + 1):
                if -(1 << 31 if kind == "int" else 1 << 63) <= number < (1 << 31 if kind == "int" else 1 << 63):
                    yield name, int(number)
        elif kind == "string":
            yield name, "x" * (of[name].length + 1)
        elif kind == "array<string>":
            yield name, ["x" * (of[name].length + 1)] * 3
            yield name, ["x"] * (min(of[name].items, 70_000) + 1)
    for column in model(topic).columns:
        ends = (-np.inf, np.nan, np.inf) if column.dtype.kind == "f" else ()
        if column.dtype.kind != "f" and not column.dictionary:
            limits, bound = np.iinfo(column.dtype), of[column.name]
            ends = [end for end in (bound.low - 1, bound.high + 1) if limits.min <= end <= limits.max]
        for end in ends:
            yield column.name, np.array([end]).astype(column.dtype)
        if of[column.name].is_time:
            yield column.name, np.array([APPENDED_MS * 1_000_000 + 2 * 86_400 * 10**9])
            yield column.name, np.array([NOW_NS - 6 * 365 * 86_400 * 10**9])


@pytest.mark.parametrize("topic", TOPICS)
def test_no_part_outside_its_bounds_is_inside(topic):
    good, count = values(topic, 2), 0
    for name, value in outside(topic):
        batch = any_batch(topic, 1, "p", 0)
        (batch.columns if name in batch.columns else batch.envelope)[name] = value
        with pytest.raises(OutOfBounds):
            check(batch, APPENDED_MS)
        if name in ("job", "run"):
            parts = merged_of(topic, [CODEC.encode(batch)])
        else:
            parts = merged_of(topic, [*good, CODEC.encode(batch)])
        assert not is_inside(parts, APPENDED_MS), name
        count += 1
    assert count > 30


def test_an_index_beyond_the_dictionary_of_its_part_is_not_inside():
    record = merged_record(model(Topic.COLLECTIVE), CODEC.registry.id_of(Topic.COLLECTIVE), batches(Topic.COLLECTIVE))
    parts = parts_of(CODEC, Topic.COLLECTIVE, CODEC.encode(record)).merged
    line = parts.layout.line["operation"]
    record.columns["numbers"][len(parts.layout.kinds) * parts.parts + line * parts.rows] = 200
    parts = parts_of(CODEC, Topic.COLLECTIVE, CODEC.encode(record))
    assert not is_inside(parts.merged, APPENDED_MS)
    with pytest.raises(BadRecord):
        _ = parts.values


@pytest.mark.parametrize(("index", "inside"), [(0, True), (2, False)])
def test_an_index_is_compared_with_the_dictionary_of_its_own_part(index, inside):
    long, short = (whole(any_batch(Topic.COLLECTIVE, 2, f"p{number}", 0)) for number in range(2))
    for batch, names in ((long, ["AllReduce", "AllGather", "Broadcast"]), (short, ["AllReduce"])):
        batch.envelope["operations"] = names
        batch.columns["operation"] = np.zeros_like(batch.columns["operation"])
    long.columns["operation"][:] = 2
    short.columns["operation"][:] = index
    record = merged_record(model(Topic.COLLECTIVE), CODEC.registry.id_of(Topic.COLLECTIVE), [long, short])
    parts = parts_of(CODEC, Topic.COLLECTIVE, CODEC.encode(record)).merged
    assert is_inside(parts, APPENDED_MS) is inside


@pytest.mark.parametrize(("topic", "column"), [(Topic.COLLECTIVE, "ordinal"), (Topic.STEP, "skipped")])
@pytest.mark.parametrize("number", [-(1 << 40), 1 << 40])
def test_a_value_wider_than_its_column_is_rejected_not_cut(topic, column, number):
    record = merged_record(model(topic), CODEC.registry.id_of(topic), batches(topic))
    parts = parts_of(CODEC, topic, CODEC.encode(record)).merged
    line = parts.layout.line[column]
    record.columns["numbers"][len(parts.layout.kinds) * parts.parts + line * parts.rows] = number
    parts = parts_of(CODEC, topic, CODEC.encode(record))
    assert not is_inside(parts.merged, APPENDED_MS)
    with pytest.raises(BadColumn):
        _ = parts.values


def test_a_tenant_signs_the_record():
    codec = Codec(guard=TenantGuard({"a": Tenant((KEY,), ("job",), ("*",))}))
    record = CODEC.merge(Topic.STEP, values(Topic.STEP))
    with pytest.raises(Unsigned):
        parts_of(codec, Topic.STEP, record, key=b"job", headers=[])
    headers = signed_headers("a", KEY, Topic.STEP, b"job", record)
    assert parts_of(codec, Topic.STEP, record, key=b"job", headers=headers).job == "job"
    foreign = any_batch(Topic.STEP, 1, "p", 0)
    foreign.envelope["job"] = "other"
    other = CODEC.merge(Topic.STEP, [CODEC.encode(foreign)])
    with pytest.raises(ForeignJob):
        parts_of(codec, Topic.STEP, other, key=b"k", headers=signed_headers("a", KEY, Topic.STEP, b"k", other))


def test_parts_of_an_older_schema_have_the_fields_of_the_current_one(tmp_path):
    registry, number = registry_with_older(Topic.DEVICE, tmp_path / "avro")
    codec, older, current = Codec(registry), registry.model_of(number), model(Topic.DEVICE)
    batch = whole(any_batch(Topic.DEVICE, 2, "p", 0))
    envelope = {name: batch.envelope[name] for name in older.envelope}
    columns = {column.name: batch.columns[column.name] for column in older.columns}
    record = merged_record(older, number, [Batch(Topic.DEVICE, envelope, columns)])
    parts = parts_of(codec, Topic.DEVICE, codec.encode(record))
    now = parts.merged.batch(0)
    same(now, codec.decode(Topic.DEVICE, parts.values[0]))
    new = {column.name for column in current.columns} - set(columns)
    assert new
    assert all(parts.merged.columns[name].tolist() == now.columns[name].tolist() for name in new)
    assert not is_inside(parts.merged, APPENDED_MS)  # checked part by part


def test_the_network_is_needed_for_the_schema_of_the_parts_too():
    record = CODEC.merge(Topic.STEP, values(Topic.STEP))
    number = number_behind(JOB_ENVELOPE.values(), record, HEADER.size)
    assert number == CODEC.registry.id_of(Topic.STEP)

    class Remote(LockFileRegistry):
        def in_memory(self, schema_id):
            return schema_id != number

    assert CODEC.decodes_at_once(record)
    assert not Codec(Remote()).decodes_at_once(record)
    assert Codec(Remote()).decodes_at_once(record[: HEADER.size])


@pytest.mark.parametrize("number", [-1, 1 << 31, 1 << 40, -(1 << 63)])
def test_no_registry_is_asked_for_a_schema_that_none_can_have(number):
    class Remote(LockFileRegistry):
        def model_of(self, schema_id):
            assert 0 <= schema_id < 1 << 31
            return super().model_of(schema_id)

        def in_memory(self, schema_id):
            return 0 <= schema_id < 1 << 31

    record = merged_record(model(Topic.STEP), number, batches(Topic.STEP))
    value, codec = CODEC.encode(record), Codec(Remote())
    assert codec.decodes_at_once(value)
    with pytest.raises(UnknownSchema):
        parts_of(codec, Topic.STEP, value)


def test_no_topic_has_the_name_of_the_schema():
    assert MERGED not in set(Topic)
    assert model(MERGED).name == "drumline.v1.Merged"
    assert json.loads(model(MERGED).text)["doc"]
