"""Whatever the bytes are: a BadRecord, or what docs/reference/decoder.py reads from them."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.schemas.batch import encode
from drumline.schemas.codec import Codec
from drumline.schemas.confluent import avro_length, header
from drumline.schemas.errors import REASONS, BadRecord
from drumline.schemas.model import model
from drumline.schemas.registry import lock_file_registry

ROOT = Path(__file__).parents[2]
CODEC = Codec()
WRITE = runpy.run_path(str(ROOT / "tests/data/golden/write.py"))
IDS = {topic: version["id"] for topic, version in WRITE["versions"]()}
#: A record of each topic with the limits of every type.
RECORDS = {topic: encode(model(topic), WRITE["sample"](model(topic)), header(number)) for topic, number in IDS.items()}
TOPICS = sorted(RECORDS)
QUICK = settings(max_examples=300, derandomize=True, deadline=None)


def by_hand():
    """The decoder that the docs publish."""
    scope = {}
    exec((ROOT / "docs/reference/decoder.py").read_text(), scope)
    return scope["decode"]


DECODE_BY_HAND = by_hand()


def same(left, right):
    return left == right or (isinstance(left, float) and math.isnan(left) and math.isnan(right))


def check(topic, value):
    fault = None
    try:
        batch = CODEC.decode(topic, value, bounded=False)  # these records hold the limits of every type
    except BadRecord as bad:
        fault = bad
    if fault is not None:
        assert fault.reason in REASONS
        assert fault.topic == topic
        return False
    record = DECODE_BY_HAND(value, json.loads(lock_file_registry().model_of(value[4]).text))
    for name in model(topic).envelope:
        assert batch.envelope[name] == record[name], name
    for column in model(topic).columns:
        array = batch.columns[column.name]
        values = batch.strings(column.name, column.dictionary) if column.dictionary else array
        assert array.shape == (batch.rows,)
        assert all(map(same, values.tolist(), record[column.name])), column.name
    return True


def test_the_docs_decoder_reads_a_record_of_every_topic():
    assert all(check(topic, value) for topic, value in RECORDS.items())


@QUICK
@given(st.sampled_from(TOPICS), st.binary(max_size=200))
def test_random_bytes(topic, noise):
    check(topic, noise)
    check(topic, RECORDS[topic][:5] + noise)


@QUICK
@given(st.sampled_from(TOPICS), st.data())
def test_flipped_bits(topic, data):
    value = bytearray(RECORDS[topic])
    for place in data.draw(st.lists(st.integers(0, len(value) * 8 - 1), min_size=1, max_size=4)):
        value[place // 8] ^= 1 << place % 8
    check(topic, bytes(value))


@QUICK
@given(st.sampled_from(TOPICS), st.data())
def test_bytes_cut_out_put_in_or_replaced(topic, data):
    value = RECORDS[topic]
    start = data.draw(st.integers(0, len(value)))
    end = data.draw(st.integers(start, min(len(value), start + 40)))
    check(topic, value[:start] + data.draw(st.binary(max_size=20)) + value[end:])


@QUICK
@given(st.sampled_from(TOPICS), st.integers(-(1 << 63), (1 << 63) - 1), st.data())
def test_absurd_numbers_anywhere(topic, number, data):
    """Lengths, counts and negative counts of blocks, rows: a long in place of a byte."""
    zigzag = (number << 1) ^ (number >> 63)
    value = RECORDS[topic]
    place = data.draw(st.integers(5, len(value) - 1))
    check(topic, value[:place] + (avro_length(zigzag // 2) if zigzag % 2 == 0 else _odd(zigzag)) + value[place + 1 :])


def _odd(left):
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


@QUICK
@given(st.sampled_from(TOPICS), st.integers(5, 400), st.integers(9, 30))
def test_overlong_numbers(topic, place, length):
    value = RECORDS[topic]
    check(topic, value[:place] + b"\xff" * length + value[place:])


def test_every_truncation_is_an_error():
    for topic in TOPICS:
        assert not any(check(topic, RECORDS[topic][:end]) for end in range(len(RECORDS[topic])))


def test_arrays_in_blocks_with_a_size_decode_as_those_without():
    topic = "gpu.collective.v1"
    batch = CODEC.decode(topic, RECORDS[topic], bounded=False)
    operations = batch.envelope["operations"]
    plain = avro_length(len(operations)) + b"".join(avro_length(len(w.encode())) + w.encode() for w in operations)
    items = b"".join(avro_length(len(w.encode())) + w.encode() for w in operations)
    sized = bytes([2 * len(operations) - 1]) + avro_length(len(items)) + items
    assert RECORDS[topic].count(plain) == 1
    again = CODEC.decode(topic, RECORDS[topic].replace(plain, sized), bounded=False)
    assert again.envelope == batch.envelope
    assert all(np.array_equal(again.columns[name], values) for name, values in batch.columns.items())
