"""The intent: read back what was written, refuse what was not, never longer than Kafka takes."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.schemas.parts.joining import position
from drumline.sinks.ranges.intent import BadIntent, Intent, read_metadata, write_done, write_intent
from drumline.sinks.ranges.offset_ranges import OffsetRange

TOPIC = "HxV9-8rbQq2Pb0vGZc4qYA"


SETS = [st.sets(st.integers(0, 400))] * 4


@given(st.integers(0, 10**15), st.integers(0, 400), *SETS)
def test_an_intent_comes_back_as_it_was_written(first, length, dead_letters, duplicate, fenced, expired):
    inside = lambda values: frozenset(position(first + v, v % 3) for v in values if v <= length)  # noqa: E731
    span = OffsetRange(TOPIC, 3, first, first + length)
    listed = inside(dead_letters), inside(duplicate), -1, inside(fenced), inside(expired)
    intent = Intent(span, length + 1, 12_345, *listed)
    assert read_metadata(write_intent(intent), 3, first) == (TOPIC, intent)


def test_nothing_pending():
    assert read_metadata(write_done(TOPIC), 0, 7) == (TOPIC, None)
    assert read_metadata("", 0, 7) == ("", None)
    assert read_metadata(None, 0, 7) == ("", None)


@pytest.mark.parametrize(
    "metadata",
    ["x", "[]", "{}", '{"v":1}', '{"v":9,"t":"a"}', '{"v":1,"t":"a","to":3}', '{"v":1,"t":"a","to":3,"n":9,"rows":1}',
     '{"v":1,"t":"a","to":30,"n":9,"rows":1,"dead":"0-99"}'],
)  # fmt: skip
def test_foreign_or_damaged_metadata_is_refused(metadata):
    with pytest.raises(BadIntent):
        read_metadata(metadata, 0, 7)


@given(st.text(max_size=60))
def test_no_text_crashes_the_reader(metadata):
    with contextlib.suppress(BadIntent):
        read_metadata(metadata, 0, 0)


def test_a_run_of_ten_thousand_dead_records_fits_into_kafkas_metadata():
    span, unread = OffsetRange(TOPIC, 3, 10**12, 10**12 + 20_000), (position(10**12 + n, 0) for n in range(10_000))
    assert len(write_intent(Intent(span, 20_001, 0, frozenset(unread)))) < 200
