"""Sequence numbers and contents of applied batches: what is new, repeated, or another producer's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.streams.core import batch_dedup
from drumline.streams.core.batch_dedup import AppliedBatches, Arrival, checksum


@given(st.lists(st.integers(0, 40)))
def test_every_sequence_number_is_new_once(numbers):
    known, applied = set(), AppliedBatches()
    for number in numbers:
        assert (applied.add(number, 1) is Arrival.NEW) == (number not in known)
        known.add(number)
        applied = AppliedBatches(applied.runs, applied.contents)
    assert all((n in applied) == (n in known) for n in range(42))


def test_gaps_are_bounded(monkeypatch):
    monkeypatch.setattr(batch_dedup, "MAX_RUNS", 3)
    applied = AppliedBatches()
    assert all(applied.add(n, 1) is Arrival.NEW for n in range(0, 20, 2))
    assert applied.runs == [[0, 14], [16, 16], [18, 18]]


@pytest.mark.parametrize(
    ("batches", "arrivals"),
    [
        ([(0, 7), (0, 7), (1, 7)], "NEW DUPLICATE NEW"),
        ([(0, 7), (0, 8), (0, 7), (0, 8), (0, 9)], "NEW CONFLICT DUPLICATE DUPLICATE CONFLICT"),
        ([(0, 0), (0, 7), (0, 0), (0, 8)], "NEW NEW DUPLICATE CONFLICT"),  # the first had no rows
        ([(0, 7), (1, 7), (2, 7), (3, 7), (0, 7), (0, 0), (1, 8)], "NEW NEW NEW NEW FORGOTTEN DUPLICATE CONFLICT"),
        ([(1, 7), (1 + (1 << 32), 8), (1, 8)], "NEW NEW DUPLICATE"),  # numbers this far apart share their content
    ],
)  # fmt: skip
def test_only_a_repetition_with_equal_content_is_a_duplicate(monkeypatch, batches, arrivals):
    monkeypatch.setattr(batch_dedup, "MAX_CONTENTS", 3)
    applied, actual = AppliedBatches(), []
    for number, content in batches:
        actual.append(applied.add(number, content).name)
        applied = AppliedBatches(applied.runs, applied.contents)
    assert " ".join(actual) == arrivals


def test_the_checksum_of_a_value_leaves_out_its_schema_id():
    assert checksum(b"\0\0\0\0\1body") == checksum(b"\0\0\0\0\2body") != checksum(b"\0\0\0\0\1bode") > 0
