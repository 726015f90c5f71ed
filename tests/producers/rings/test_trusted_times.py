"""Contradictions of times with calls and with each other."""

import numpy as np
import pytest

from drumline.producers.rings.trusted_times import OVERLAP_NS, SLACK_NS, untrusted

MS = 1_000_000


def wrong(*operations, communicator=None):
    """Places of untrusted operations, each (call, start, stop) in ms; a stop of 0 = not known."""
    called, start, stop = (np.array(values, np.int64) * MS for values in zip(*operations, strict=True))
    communicator = np.zeros(len(called), np.int64) if communicator is None else np.array(communicator)
    return np.flatnonzero(untrusted(communicator, called, start, stop, stop > 0)).tolist()


def test_operations_one_after_the_other_are_trusted():
    assert wrong((0, 1, 2), (0, 2, 3), (0, 3, 9), (9, 10, 11)) == []


def test_one_that_begins_before_its_call_is_not():
    assert wrong((0, 1, 2), (3, 2, 4), (3, 4, 5)) == [1]


def test_two_that_run_at_once_in_a_communicator_are_not():
    assert wrong((0, 1, 4), (0, 3, 5), (0, 5, 6)) == [0, 1]


def test_they_may_run_at_once_in_two_communicators():
    assert wrong((0, 1, 4), (0, 3, 5), communicator=(0, 1)) == []


def test_one_that_took_the_interval_of_an_older_one_is_not_nor_is_that():
    assert wrong((0, 1, 2), (0, 3, 4), (0, 3, 4), (0, 5, 6)) == [1, 2]


def test_the_order_of_calls_is_not_that_of_the_gpu():
    assert wrong((0, 5, 6), (0, 1, 2)) == []


def test_what_is_not_known_contradicts_nothing():
    assert wrong((0, 1, 4), (0, 2, 0), (0, 4, 5)) == []


@pytest.mark.parametrize(("early_ns", "expected"), [(SLACK_NS, []), (SLACK_NS + 1, [0])])
def test_clocks_are_compared_with_a_slack(early_ns, expected):
    called, start = np.array([10 * MS]), np.array([10 * MS - early_ns])
    result = untrusted(np.zeros(1, np.int64), called, start, start + MS, np.ones(1, bool))
    assert np.flatnonzero(result).tolist() == expected


@pytest.mark.parametrize(("overlap_ns", "expected"), [(OVERLAP_NS, []), (OVERLAP_NS + 1, [0, 1])])
def test_times_of_one_clock_are_compared_with_a_smaller_one(overlap_ns, expected):
    start = np.array([MS, MS + 90_000 - overlap_ns])
    result = untrusted(np.zeros(2, np.int64), np.zeros(2), start, start + 90_000, np.ones(2, bool))
    assert np.flatnonzero(result).tolist() == expected
