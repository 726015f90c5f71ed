"""Numbers of a list are looked at before fastavro, which wraps those of more than 64 bits silently."""

import pytest
from support.labs.sink import any_batch

from drumline.schemas.avro_check import malformed
from drumline.schemas.batch import encode
from drumline.schemas.confluent import varint
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


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (MARK, ""),
        (b"\xff" * 9 + b"\x01", ""),
        (b"\xff" * 9 + b"\x02", "rank_list: a number of more than 64 bits"),
        (b"\xff" * 40 + b"\x01", "rank_list: a number of more than 64 bits"),
    ],
)
def test_a_number_of_a_list_has_64_bits_at_most(number, fault):
    assert malformed(model(Topic.LATENESS), record().replace(MARK, number), 0) == fault


def test_a_list_that_ends_in_a_number_is_truncated():
    body = record()
    for end in range(body.index(MARK) + 1, body.index(MARK) + len(MARK) + 1):
        assert malformed(model(Topic.LATENESS), body[:end], 0) == "rank_list: truncated"
