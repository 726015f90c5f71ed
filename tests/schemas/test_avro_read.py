"""Bodies are read as the Avro format has them, and refused where they are not."""

import pytest
from support.labs.sink import any_batch

from drumline.schemas.avro_read import read_fields
from drumline.schemas.batch import encode
from drumline.schemas.confluent import varint
from drumline.schemas.errors import BadEnvelope
from drumline.schemas.model import model
from drumline.schemas.topics import Topic

RANK = 1_234_567
MARK = varint(RANK << 1)


def record():
    batch = any_batch(Topic.LATENESS, 1, "p", 0)
    batch.envelope["rank_list"] = [RANK]
    body = encode(model(Topic.LATENESS), batch)
    assert body.count(MARK) == 1
    return body


def read(body):
    return read_fields(model(Topic.LATENESS), body, 0, Topic.LATENESS)["rank_list"]


@pytest.mark.parametrize(
    ("number", "value"),
    [(MARK, RANK), (b"\x09", -5), (b"\x80\x01", 64), (b"\xff\xff\x01", -16_384), (b"\xff" * 9 + b"\x01", -(1 << 63))],
)
def test_a_number_of_a_list_is_read_however_many_bytes_it_has(number, value):
    assert read(record().replace(MARK, number)) == [value]


@pytest.mark.parametrize("number", [b"\xff" * 9 + b"\x02", b"\xff" * 40 + b"\x01"])
def test_a_number_of_a_list_has_64_bits_at_most(number):
    with pytest.raises(BadEnvelope, match="rank_list: a number of more than 64 bits"):
        read(record().replace(MARK, number))


def test_a_list_that_ends_in_a_number_is_truncated():
    body = record()
    for end in range(body.index(MARK) + 1, body.index(MARK) + len(MARK)):
        with pytest.raises(BadEnvelope, match="rank_list: truncated"):
            read(body[:end])


def test_a_text_is_utf_8():
    body = record()
    host = body.index(b"host")
    with pytest.raises(BadEnvelope, match="hosts: a text that is no UTF-8"):
        read(body[:host] + b"\xff" + body[host + 1 :])
