"""Records of several batches: split into what was joined, whatever the schemas of the parts, and no one else's rows."""

import pytest
from support.labs.sink import any_batch
from support.older_schema import registry_with_older
from support.tables import parts_of

from drumline.schemas.batch import encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER, header
from drumline.schemas.errors import BadEnvelope, BadRecord, ForeignJob, Unsigned, WrongSchema
from drumline.schemas.model import model, parse_model
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.parts.parts import JOINED_BY_AGENTS, MOST_PARTS, PARTS, joined, place_of, position
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic

CODEC = Codec()
KEY = b"k" * 32


def values(topic, count=3):
    return [CODEC.encode(any_batch(topic, number, f"p{number}", number)) for number in range(count)]


@pytest.mark.parametrize("topic", sorted(JOINED_BY_AGENTS))
def test_a_record_is_split_into_the_values_that_were_joined(topic):
    sent = values(topic)
    parts = parts_of(CODEC, topic, CODEC.join("job", sent))
    assert (parts.job, parts.values) == ("job", sent)
    batches = [CODEC.decode(topic, value, of=parts) for value in parts.values]
    assert [batch.envelope["sequence"] for batch in batches] == [0, 1, 2]


@pytest.mark.parametrize("topic", sorted(JOINED_BY_AGENTS))
def test_a_record_that_is_a_batch_has_no_parts(topic):
    assert parts_of(CODEC, topic, values(topic)[1]) is None


def test_a_part_may_have_an_older_schema(tmp_path):
    registry, older = registry_with_older(Topic.DEVICE, tmp_path / "avro")
    codec, shape, now = Codec(registry), registry.model_of(older), values(Topic.DEVICE)[0]
    [added] = {column.name for column in model(Topic.DEVICE).columns} - {column.name for column in shape.columns}
    batch = any_batch(Topic.DEVICE, 3, "p", 1)
    assert batch.columns.pop(added).tolist() != [-1] * 3
    written = encode(shape, batch, header(older))
    parts = parts_of(codec, Topic.DEVICE, codec.join("job", [now, written]))
    assert [int(HEADER.unpack_from(value)[1]) for value in parts.values] == [registry.id_of(Topic.DEVICE), older]
    batches = [codec.decode(Topic.DEVICE, value, of=parts) for value in parts.values]
    assert batches[1].columns[added].tolist() == [-1] * 3


def test_topics_that_agents_do_not_join_take_no_joined_record():
    record = CODEC.join("job", values(Topic.KERNEL))
    assert parts_of(CODEC, Topic.KERNEL, record) is None
    with pytest.raises(WrongSchema):
        CODEC.decode(Topic.KERNEL, record)


@pytest.mark.parametrize(
    ("shape", "kind", "other"),
    [
        (PARTS, '"items": "int"', '"items": "string"'),
        (MERGED, '"schema", "type": "long", "default": 0', '"schema", "type": "string", "default": ""'),
    ],
)
def test_a_foreign_schema_with_the_name_of_a_joined_one_is_refused(shape, kind, other, monkeypatch):
    text = model(shape).text
    assert kind in text
    foreign, codec = parse_model(shape, text.replace(kind, other, 1)), Codec()
    monkeypatch.setattr(codec.registry, "model_of", lambda number: foreign)
    with pytest.raises(WrongSchema):
        parts_of(codec, Topic.STEP, header(4_000_000) + b"\0" * 40)


def test_a_joined_record_is_no_part():
    inner = CODEC.join("job", values(Topic.STEP))
    parts = parts_of(CODEC, Topic.STEP, CODEC.join("job", [inner]))
    with pytest.raises(WrongSchema):
        CODEC.decode(Topic.STEP, parts.values[0], of=parts)


@pytest.mark.parametrize("sizes", [[], [1, 1], [0, 6], [-1, 7], [7], [1] * (MOST_PARTS + 1)])
def test_sizes_that_are_not_those_of_the_content_are_rejected(sizes):
    record = joined("job", [b"abcdef"])
    record.envelope["sizes"] = sizes
    if len(sizes) > MOST_PARTS:
        record = joined("job", [b"a"] * len(sizes))
    with pytest.raises(BadEnvelope, match="parts"):
        parts_of(CODEC, Topic.STEP, CODEC.encode(record))


def test_bytes_that_are_cut_anywhere_are_a_bad_record():
    record = CODEC.join("job", values(Topic.STEP))
    for end in range(HEADER.size, len(record) - 1, 7):
        with pytest.raises(BadRecord):
            parts_of(CODEC, Topic.STEP, record[:end])


def test_a_tenant_signs_the_record_and_no_part_is_of_another_job():
    codec = Codec(guard=TenantGuard({"a": Tenant((KEY,), ("job",), ("*",))}))
    foreign = any_batch(Topic.STEP, 1, "p", 0)
    foreign.envelope["job"] = "other"
    record = CODEC.join("job", [values(Topic.STEP)[1], CODEC.encode(foreign)])
    with pytest.raises(Unsigned):
        parts_of(codec, Topic.STEP, record, key=b"job", headers=[])
    headers = signed_headers("a", KEY, Topic.STEP, b"job", record)
    parts = parts_of(codec, Topic.STEP, record, key=b"job", headers=headers)
    assert codec.decode(Topic.STEP, parts.values[0], key=b"job", headers=headers, of=parts).rows == 1
    with pytest.raises(ForeignJob):
        codec.decode(Topic.STEP, parts.values[1], key=b"job", headers=headers, of=parts)
    other = CODEC.join("other", [CODEC.encode(foreign)])
    with pytest.raises(ForeignJob):
        parts_of(codec, Topic.STEP, other, key=b"k", headers=signed_headers("a", KEY, Topic.STEP, b"k", other))


def test_positions_rise_from_part_to_part():
    places = [(0, 0), (0, 1), (0, MOST_PARTS), (1, 0), (1 << 39, 3)]
    numbers = [position(*place) for place in places]
    assert numbers == sorted(set(numbers))
    assert [place_of(number) for number in numbers] == places


def test_no_topic_has_the_name_of_the_schema():
    assert PARTS not in set(Topic)
    assert model(PARTS).name == "drumline.v1.Parts"
