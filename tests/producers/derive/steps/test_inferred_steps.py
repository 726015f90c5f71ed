"""Steps of a job that marks none, and communicators that NCCL does not name."""

from __future__ import annotations

import numpy as np
import pytest
from support.activity_builder import ALL_GATHER, ALL_REDUCE, GEMM, Recorder, column

from drumline.producers.batching.recorded import feeds
from drumline.producers.derive.nccl import kernel_names as nccl
from drumline.producers.derive.nccl.calls import NcclCalls
from drumline.producers.derive.rows import derive
from drumline.producers.derive.steps.inferred_steps import find_period, inferred_steps
from drumline.producers.derive.steps.steps import API_DOMAIN
from drumline.schemas.topics import Topic

US = 1_000
REDUCE, GATHER, BROADCAST = (nccl.OPERATIONS.index(name) for name in ("AllReduce", "AllGather", "Broadcast"))


def calls_of(sequence, communicators=None):
    """Calls 10 ns apart: [(operation, bytes)]."""
    operation, size = np.array(sequence, np.uint64).T
    count = len(sequence)
    communicator = np.full(count, 7, np.uint64) if communicators is None else np.array(communicators, np.uint64)
    start = np.arange(count) * 10
    return NcclCalls(
        start, operation.astype("u1"), communicator, size, np.ones(count, bool), start, np.full(count, -1, "i4")
    )


STEP = [(GATHER, 5), (REDUCE, 3), (REDUCE, 9), (REDUCE, 3)]


def steps(calls, id_gaps=None):
    return inferred_steps(calls, find_period(calls, id_gaps), id_gaps)


def test_what_repeats_is_a_step():
    result = steps(calls_of([(BROADCAST, 1), *STEP * 8]))
    assert np.diff(result.number).tolist() == [1] * (len(result.number) - 1)
    assert len(result.number) >= 7
    assert (np.diff(result.start_ns) == 40).all()
    assert result.end_ns[:-1].tolist() == result.start_ns[1:].tolist()


def test_ranks_cut_at_the_same_call_whatever_their_communicators_are_called():
    pairs = [1, 1, 2, 2] * 8
    first_rank, other = (steps(calls_of(STEP * 8, [name + base for name in pairs])) for base in (10, 90))
    assert first_rank.start_ns.tolist() == other.start_ns.tolist()


def test_ranks_that_are_seen_from_different_moments_on_cut_at_the_same_call():
    whole, late = STEP * 9, 6
    first_rank, other = steps(calls_of(whole)), steps(calls_of(whole[late:]))
    assert set((other.start_ns + 10 * late).tolist()) < set(first_rank.start_ns.tolist())


@pytest.mark.parametrize("between", [[], [(BROADCAST, 1)], STEP[:3], [(BROADCAST, 1)] * 6])
def test_numbers_go_on_by_as_many_steps_as_would_have_fitted_in_between(between):
    result = steps(calls_of([*STEP * 30, *between, *STEP * 30]))
    calls = (result.start_ns - result.start_ns[0]) // 10
    assert (result.number - result.number[0]).tolist() == np.floor(calls / 4 + 0.5).tolist()


def test_a_lost_call_costs_its_step_and_shifts_no_number():
    sequence = STEP * 12
    whole, result = steps(calls_of(sequence)), steps(calls_of(sequence[:21] + sequence[22:]))
    assert set(result.number.tolist()) == set(whole.number.tolist()) - {int(whole.number_at(np.array([210]))[0])}


def test_a_step_ends_with_what_all_ranks_leave_together():
    send = nccl.OPERATIONS.index("Send")
    calls = calls_of([(send, 1), (send, 1), (REDUCE, 9)] * 8)
    result = steps(calls)
    last = [np.flatnonzero(result.index_at(calls.start_ns) == i)[-1] for i in range(len(result.number))]
    assert set(calls.operation[last].tolist()) == {REDUCE}


def test_equal_calls_are_separated_by_the_calls_between_them():
    calls = calls_of([(REDUCE, 3)] * 40)
    id_gaps = np.tile([100, 10, 10, 10], 10)
    assert np.diff(steps(calls, id_gaps).start_ns).tolist() == [40] * 9
    assert len(steps(calls).number) == 40  # no other evidence: each of them is a step


@pytest.mark.parametrize("sequence", [STEP, [(REDUCE, size) for size in range(60)]])
def test_what_does_not_repeat_is_no_step(sequence):
    assert find_period(calls_of(sequence)) is None


def job(recorder, steps=8, mark=None, **call):
    """A process that gathers and reduces in each step of 100 us."""
    for number in range(steps):
        start = 1_000_000 + number * 100 * US
        if mark:
            mark(recorder, number, start)
        recorder.kernel(GEMM, start, start + 40 * US)
        for i, (name, kernel) in enumerate((("ncclAllGather", ALL_GATHER), ("ncclAllReduce", ALL_REDUCE))):
            if call.get("ranges", True):
                recorder.call(name, start + (20 + 5 * i) * US, payload=call.get("payload", True))
            at = start + (45 + 20 * i) * US
            recorder.kernel(kernel, at, at + 15 * US, stream_id=7)
    return recorder


def range_marker(name, domain=""):
    return lambda recorder, number, start: recorder.range(name.format(number), start, start + 90 * US, domain=domain)


@pytest.mark.parametrize(
    ("marks", "source"),
    [
        ((), "inferred"),
        (("optimizer",), "optimizer"),
        (("marker", "optimizer"), "marker"),
        (("api", "marker", "optimizer"), "api"),
    ],
)
def test_sources_of_steps_by_precedence(tmp_path, marks, source):
    known = {
        "api": range_marker("step {}", API_DOMAIN),
        "marker": range_marker("step {}"),
        "optimizer": range_marker("optimizer step {}", API_DOMAIN),
    }

    def mark(recorder, number, start):
        for marker_kind in marks:
            known[marker_kind](recorder, number, start)

    result = derive(job(Recorder(), mark=mark).activity(tmp_path))
    assert result.steps_from == source
    assert result.steps.rows >= 7
    sent = next(feed for feed in feeds(result, 0, 10**9, {Topic.STEP}))
    assert sent.steps_from == source


@pytest.mark.parametrize("ranges", [True, False], ids=["no payloads", "no ranges"])
def test_communicators_that_nccl_does_not_name_are_guessed_by_stream_and_operation(tmp_path, ranges):
    result = derive(job(Recorder(), payload=False, ranges=ranges).activity(tmp_path))
    assert {nccl.hash_text(c) for c in column(result.collectives, "communicator")} == {"~7 AllGather", "~7 AllReduce"}
    assert result.steps_from == "inferred"
    assert not result.steps["skipped"].any()
    assert (result.steps["compute_ns"][1:] == 40 * US).all()


def test_a_hash_is_no_guess():
    assert nccl.hash_text(0xDD318007BDA2B640) == "dd318007bda2b640"
    assert nccl.is_guess(np.array([0xDD318007BDA2B640, 0], np.uint64)).tolist() == [False, False]
    assert nccl.is_guess(nccl.guess(2**32 - 1, np.arange(12))).all()
