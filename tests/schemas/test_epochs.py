"""The header that fences a worker's records, and the rule for results."""

import pytest

from drumline.schemas.epochs import EPOCH_HEADER, MAX_EPOCH, is_ahead, is_fenced, read_epoch, write_epoch


@pytest.mark.parametrize(("epoch", "source"), [(0, ""), (7 << 20, "changelog:3"), (MAX_EPOCH, "a b:0")])
def test_what_is_written_is_read(epoch, source):
    assert read_epoch([("other", b"1"), write_epoch(epoch, source)]) == (epoch, source)


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"x", b"-1 s", b"1.5 s", b"\xff", str(MAX_EPOCH + 1).encode(), b"9" * 5000,
        b"0" * 20 + b"9" * 25, b"0" * 20 + b"9" * 5000 + b" s", b"1 " + b"s" * 301,
    ],
)  # fmt: skip
def test_a_header_that_drumline_did_not_write_is_none(value):
    assert read_epoch([(EPOCH_HEADER, value)]) == (None, "")


def test_a_result_is_fenced_behind_one_of_a_later_writer_of_the_same_state():
    highest = {}
    assert not is_fenced(highest, 5, "a:0")
    assert not is_fenced(highest, 6, "a:0")
    assert is_fenced(highest, 5, "a:0")
    assert not is_fenced(highest, 5, "a:1")
    assert not is_fenced(highest, 6, "a:0")
    assert not is_fenced(highest, None, "")  # of a drumline without epochs
    assert highest == {"a:0": 6, "a:1": 5}


def test_no_worker_writes_an_epoch_of_more_than_a_day_ahead():
    now, day = 1_760_000_000_000, 86_400_000
    assert [is_ahead(now + ahead, now) for ahead in (-now, 0, day, day + 1)] == [False] * 3 + [True]
    assert not is_ahead(MAX_EPOCH, -1)  # the record has no time
    assert not is_ahead(None, now)
