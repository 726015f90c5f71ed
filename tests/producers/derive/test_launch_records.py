"""Kernels that find their calls by the time of their launch, and when that is asked for."""

import numpy as np
import pytest

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls, until_launched
from drumline.producers.derive.nccl.launch_records import MOST_NS, PAUSE_NS, Asking, calls_of

SECOND = 1_000_000_000


def found(launched, start, end):
    return calls_of(*(np.array(times, np.int64) for times in (launched, start, end))).tolist()


def test_a_kernel_belongs_to_the_call_in_which_it_was_launched_whatever_else_is_missing():
    start, end = [10, 20, 30, 40], [15, 25, 35, 45]
    assert found([12, 22, 32, 42], start, end) == [0, 1, 2, 3]
    assert found([12, 42], start, end) == [0, 3], "kernels are missing"
    assert found([12, 22, 42], [10, 40], [15, 45]) == [0, -1, 1], "a call is missing"
    assert found([12, -1, 32], start, end) == [0, -1, 2], "a launch is missing"
    assert found([5, 17], start, end) == [-1, -1], "before any call, and between two"
    assert found([1, -1], [], []) == [-1, -1]


def test_what_could_be_either_of_two_belongs_to_neither():
    assert found([13], [10, 12], [20, 18]) == [-1], "threads that call at the same time"
    assert found([12, 13], [10], [15]) == [-1, -1], "two kernels of one call"
    assert found([19, 31], [10, 12, 30], [20, 18, 40]) == [-1, 2]


@pytest.mark.parametrize("communicators", [1, 2])
def test_a_group_is_launched_at_its_end(communicators):
    names = ["ncclSend", nccl.GROUP_END]
    ranges = Table(
        {"name": np.array([0, 0, 1]), "start_ns": np.array([10, 20, 30]), "duration_ns": np.array([5, 5, 9])},
        {"names": names},
    )
    start, ones = np.array([10, 20]), np.ones(2, "u1")
    each = Calls(start, ones, np.array([1, communicators], "u8"), ones.astype("u8"), ones.astype(bool), start + 5)
    each = until_launched(each, np.array([1, 1]), ranges)
    assert each.end_ns.tolist() == [39, 39]
    together = each if communicators == 2 else each.take(np.array([0]))  # one kernel a communicator
    kernels = calls_of(np.array([33] * communicators), together.start_ns, together.end_ns)
    assert kernels.tolist() == ([0] if communicators == 1 else [-1, -1])


def test_launches_are_asked_for_while_pairs_are_in_doubt_but_not_for_ever():
    asking = Asking()
    assert not asking.wanted(0, False)
    assert asking.wanted(1 * SECOND, True)
    assert asking.wanted(3 * SECOND, True)
    assert not asking.wanted(4 * SECOND, False)
    assert asking.wanted(5 * SECOND, True)
    assert asking.wanted(5 * SECOND + MOST_NS, True)
    after = 6 * SECOND + MOST_NS
    assert not asking.wanted(after, True)
    assert not asking.wanted(after + PAUSE_NS - SECOND, True)
    assert asking.wanted(after + PAUSE_NS, True)
    assert asking.times == 3
