"""Kernels that find their calls by the time of their launch, and when launches are recorded."""

import numpy as np
import pytest

from drumline.producers.activity.table import Table
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls, until_launched
from drumline.producers.derive.nccl.launch_records import MOST_NS, PAUSE_NS, LaunchRecordRequest, calls_of

SECOND = 1_000_000_000


def matched(launched, start, end):
    return calls_of(*(np.array(times, np.int64) for times in (launched, start, end))).tolist()


def test_a_kernel_belongs_to_the_call_in_which_it_was_launched_whatever_else_is_missing():
    start, end = [10, 20, 30, 40], [15, 25, 35, 45]
    assert matched([12, 22, 32, 42], start, end) == [0, 1, 2, 3]
    assert matched([12, 42], start, end) == [0, 3], "kernels are missing"
    assert matched([12, 22, 42], [10, 40], [15, 45]) == [0, -1, 1], "a call is missing"
    assert matched([12, -1, 32], start, end) == [0, -1, 2], "a launch is missing"
    assert matched([5, 17], start, end) == [-1, -1], "before any call, and between two"
    assert matched([1, -1], [], []) == [-1, -1]


def test_what_could_be_either_of_two_belongs_to_neither():
    assert matched([13], [10, 12], [20, 18]) == [-1], "threads that call at the same time"
    assert matched([12, 13], [10], [15]) == [-1, -1], "two kernels of one call"
    assert matched([19, 31], [10, 12, 30], [20, 18, 40]) == [-1, 2]


@pytest.mark.parametrize("communicators", [1, 2])
def test_a_group_is_launched_at_its_end(communicators):
    names = ["ncclSend", nccl.GROUP_END]
    ranges = Table(
        {"name": np.array([0, 0, 1]), "start_ns": np.array([10, 20, 30]), "duration_ns": np.array([5, 5, 9])},
        {"names": names},
    )
    start, ones = np.array([10, 20]), np.ones(2, "u1")
    names, sizes, none = np.array([1, communicators], "u8"), ones.astype("u8"), np.full(2, -1, "i4")
    calls = NcclCalls(start, ones, names, sizes, ones.astype(bool), start + 5, none)
    calls = until_launched(calls, np.array([1, 1]), ranges)
    assert calls.end_ns.tolist() == [39, 39]
    together = calls if communicators == 2 else calls.take(np.array([0]))  # one kernel a communicator
    kernels = calls_of(np.array([33] * communicators), together.start_ns, together.end_ns)
    assert kernels.tolist() == ([0] if communicators == 1 else [-1, -1])


def test_launches_are_recorded_while_kernels_are_unmatched_but_not_for_ever():
    request = LaunchRecordRequest()
    assert not request.wanted(0, False)
    assert request.wanted(1 * SECOND, True)
    assert request.wanted(3 * SECOND, True)
    assert not request.wanted(4 * SECOND, False)
    assert request.wanted(5 * SECOND, True)
    assert request.wanted(5 * SECOND + MOST_NS, True)
    after = 6 * SECOND + MOST_NS
    assert not request.wanted(after, True)
    assert not request.wanted(after + PAUSE_NS - SECOND, True)
    assert request.wanted(after + PAUSE_NS, True)
    assert request.times == 3
