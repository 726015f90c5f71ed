"""Records of several batches: split into what was merged, and no one else's rows."""

import pytest
from support.labs.sink import any_batch
from support.tables import merged_record, parts_of

from drumline.schemas.codec import Codec
from drumline.schemas.confluent import HEADER, header
from drumline.schemas.errors import BadRecord, ForeignJob, Unsigned, WrongSchema
from drumline.schemas.model import model, parse_model
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.parts.parts import JOINED_BY_AGENTS, MOST_PARTS, place_of, position
from drumline.schemas.tenants import Tenant, TenantGuard, signed_headers
from drumline.schemas.topics import Topic

CODEC = Codec()
KEY = b"k" * 32


def values(topic, count=3):
    return [CODEC.encode(any_batch(topic, number, f"p{number}", number)) for number in range(count)]


@pytest.mark.parametrize("topic", sorted(JOINED_BY_AGENTS))
def test_a_record_is_split_into_the_values_that_were_merged(topic):
    sent = values(topic)
    parts = parts_of(CODEC, topic, CODEC.merge(topic, sent))
    assert (parts.job, parts.values) == ("job", sent)
    batches = [CODEC.decode(topic, value, of=parts) for value in parts.values]
    assert [batch.envelope["sequence"] for batch in batches] == [0, 1, 2]


@pytest.mark.parametrize("topic", sorted(JOINED_BY_AGENTS))
def test_a_record_that_is_a_batch_has_no_parts(topic):
    assert parts_of(CODEC, topic, values(topic)[1]) is None


def test_a_foreign_schema_with_the_name_of_a_merged_one_is_refused(monkeypatch):
    text, kind = model(MERGED).text, '"schema", "type": "long", "default": 0'
    assert kind in text
    foreign = parse_model(MERGED, text.replace(kind, '"schema", "type": "string", "default": ""', 1))
    codec = Codec()
    monkeypatch.setattr(codec.registry, "model_of", lambda number: foreign)
    with pytest.raises(WrongSchema):
        parts_of(codec, Topic.STEP, header(4_000_000) + b"\0" * 40)


def test_bytes_that_are_cut_anywhere_are_a_bad_record():
    record = CODEC.merge(Topic.STEP, values(Topic.STEP))
    for end in range(HEADER.size, len(record) - 1, 7):
        with pytest.raises(BadRecord):
            parts_of(CODEC, Topic.STEP, record[:end])


def test_a_tenant_signs_the_record_whose_job_all_parts_have():
    codec = Codec(guard=TenantGuard({"a": Tenant((KEY,), ("job",), ("*",))}))
    foreign = any_batch(Topic.STEP, 1, "p", 0)
    foreign.envelope["job"] = "other"
    assert CODEC.merge(Topic.STEP, [values(Topic.STEP)[1], CODEC.encode(foreign)]) is None
    record = CODEC.merge(Topic.STEP, values(Topic.STEP))
    with pytest.raises(Unsigned):
        parts_of(codec, Topic.STEP, record, key=b"job", headers=[])
    headers = signed_headers("a", KEY, Topic.STEP, b"job", record)
    parts = parts_of(codec, Topic.STEP, record, key=b"job", headers=headers)
    assert codec.decode(Topic.STEP, parts.values[1], key=b"job", headers=headers, of=parts).rows == 1
    other = CODEC.merge(Topic.STEP, [CODEC.encode(foreign)])
    with pytest.raises(ForeignJob):
        parts_of(codec, Topic.STEP, other, key=b"k", headers=signed_headers("a", KEY, Topic.STEP, b"k", other))


@pytest.mark.parametrize("change", [{"run": "other"}, {"local_rank": 1 << 31}])
def test_batches_that_fit_no_table_are_not_merged(change):
    schema = model(Topic.STEP)
    parts = [CODEC.decode(Topic.STEP, value) for value in values(Topic.STEP)]
    assert merged_record(schema, 7, parts) is not None
    parts[1].envelope.update(change)
    assert merged_record(schema, 7, parts) is None


def test_positions_rise_from_part_to_part():
    places = [(0, 0), (0, 1), (0, MOST_PARTS), (1, 0), (1 << 39, 3)]
    numbers = [position(*place) for place in places]
    assert numbers == sorted(set(numbers))
    assert [place_of(number) for number in numbers] == places


def test_no_topic_has_the_name_of_the_schema():
    assert MERGED not in set(Topic)
    assert model(MERGED).name == "drumline.v1.Merged"
