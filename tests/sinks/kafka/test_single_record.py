"""A record is read again, or known to be removed; a log that ends before it is neither."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError

from drumline.schemas.topics import Topic
from drumline.sinks.errors import TransientKafkaError
from drumline.sinks.kafka.single_record import read_again
from drumline.sinks.ranges.disposition import Record

OFFSET = 7


def answer(offset, code=None):
    error = None if code is None else KafkaError(code)
    return SimpleNamespace(
        error=lambda: error, offset=lambda: offset, value=lambda: b"value", headers=lambda: [("name", b"1")]
    )


def read(message, low=0):
    record = Record(Topic.KERNEL, 0, OFFSET, b"key", None, 0, [])
    consumer = SimpleNamespace(
        assign=lambda _: None, unassign=lambda: None, poll=lambda _: message,
        get_watermark_offsets=lambda *_, **__: (low, low + 10),
    )  # fmt: skip
    return read_again(consumer, record), record


def test_value_and_headers_are_set():
    known, record = read(answer(OFFSET))
    assert (known, record.value, record.headers) == (True, b"value", [("name", b"1")])


@pytest.mark.parametrize(
    ("message", "low"),
    [
        (answer(OFFSET + 1), 0),
        (answer(OFFSET + 1, KafkaError._PARTITION_EOF), 0),
        (answer(OFFSET, KafkaError._AUTO_OFFSET_RESET), OFFSET + 1),
    ],
    ids=["compaction", "compaction of the last", "retention"],
)
def test_a_removed_record_is_known(message, low):
    assert read(message, low)[0] is False


@pytest.mark.parametrize("code", [KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET])
def test_a_log_that_ends_before_the_record_is_read_again_later(code):
    with pytest.raises(TransientKafkaError, match=r"partition 0.*offset 7"):
        read(answer(OFFSET, code))
