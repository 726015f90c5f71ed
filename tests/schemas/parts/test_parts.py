"""Records of several batches: split into what was merged, and no one else's rows."""

import pytest
from support.labs.sink import any_batch
from support.tables import merged_record, parts_of

from drumline.schemas.codec import Codec
from drumline.schemas.confluent import header
from drumline.schemas.errors import WrongSchema
from drumline.schemas.model import model, parse_model
from drumline.schemas.parts.joining import JOINED_BY_AGENTS, MOST_PARTS, place_of, position
from drumline.schemas.parts.merged import MERGED
from drumline.schemas.topics import Topic

CODEC = Codec()


def values(topic, count=3):
    return [CODEC.encode(any_batch(topic, number, f"p{number}", number)) for number in range(count)]


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


def test_a_number_that_its_type_does_not_hold_fits_no_table():
    schema = model(Topic.STEP)
    parts = [CODEC.decode(Topic.STEP, value) for value in values(Topic.STEP)]
    assert merged_record(schema, 7, parts) is not None
    parts[1].envelope.update(local_rank=1 << 31)
    assert merged_record(schema, 7, parts) is None


def test_positions_rise_from_part_to_part():
    places = [(0, 0), (0, 1), (0, MOST_PARTS), (1, 0), (1 << 39, 3)]
    numbers = [position(*place) for place in places]
    assert numbers == sorted(set(numbers))
    assert [place_of(number) for number in numbers] == places
