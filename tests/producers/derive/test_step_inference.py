"""Steps of a job that marks none, and communicators that NCCL does not name."""

from __future__ import annotations

import numpy as np
import pytest
from support.activity_builder import ALL_GATHER, ALL_REDUCE, GEMM, Recorder, column

from drumline.producers.batches.recorded import feeds
from drumline.producers.derive.nccl import names as nccl
from drumline.producers.derive.nccl.calls import Calls
from drumline.producers.derive.rows import derive
from drumline.producers.derive.steps.inference import beat, inferred_steps
from drumline.producers.derive.steps.steps import API_DOMAIN
from drumline.schemas.topics import Topic

US = 1_000
REDUCE, GATHER, BROADCAST = (nccl.OPERATIONS.index(name) for name in ("AllReduce", "AllGather", "Broadcast"))


def made(sequence, communicators=None):
    """Calls 10 ns apart: [(operation, bytes)]."""
    operation, size = np.array(sequence, np.uint64).T
    count = len(sequence)
    who = np.full(count, 7, np.uint64) if communicators is None else np.array(communicators, np.uint64)
    start = np.arange(count) * 10
    return Calls(start, operation.astype("u1"), who, size, np.ones(count, bool), start)


STEP = [(GATHER, 5), (REDUCE, 3), (REDUCE, 9), (REDUCE, 3)]


def steps(each, apart=None):
    return inferred_steps(each, beat(each, apart), apart)


def test_what_repeats_is_a_step():
    found = steps(made([(BROADCAST, 1), *STEP * 8]))
    assert np.diff(found.number).tolist() == [1] * (len(found.number) - 1)
    assert len(found.number) >= 7
    assert (np.diff(found.start_ns) == 40).all()
    assert found.end_ns[:-1].tolist() == found.start_ns[1:].tolist()


def test_ranks_cut_at_the_same_call_whatever_their_communicators_are_called():
    pairs = [1, 1, 2, 2] * 8
    one, other = (steps(made(STEP * 8, [name + base for name in pairs])) for base in (10, 90))
    assert one.start_ns.tolist() == other.start_ns.tolist()


def test_ranks_that_are_seen_from_different_moments_on_cut_at_the_same_call():
    whole, late = STEP * 9, 6
    one, other = steps(made(whole)), steps(made(whole[late:]))
    assert set((other.start_ns + 10 * late).tolist()) < set(one.start_ns.tolist())


@pytest.mark.parametrize("between", [[], [(BROADCAST, 1)], STEP[:3], [(BROADCAST, 1)] * 6])
def test_numbers_go_on_by_as_many_steps_as_would_have_fitted_in_between(between):
    found = steps(made([*STEP * 30, *between, *STEP * 30]))
    calls = (found.start_ns - found.start_ns[0]) // 10
    assert (found.number - found.number[0]).tolist() == np.floor(calls / 4 + 0.5).tolist()


def test_a_lost_call_costs_its_step_and_shifts_no_number():
    sequence = STEP * 12
    whole, found = steps(made(sequence)), steps(made(sequence[:21] + sequence[22:]))
    assert set(found.number.tolist()) == set(whole.number.tolist()) - {int(whole.number_at(np.array([210]))[0])}


def test_a_step_ends_with_what_all_ranks_leave_together():
    send = nccl.OPERATIONS.index("Send")
    each = made([(send, 1), (send, 1), (REDUCE, 9)] * 8)
    found = steps(each)
    last = [np.flatnonzero(found.index_at(each.start_ns) == i)[-1] for i in range(len(found.number))]
    assert set(each.operation[last].tolist()) == {REDUCE}


def test_calls_that_are_all_alike_are_told_apart_by_what_lies_between_them():
    each = made([(REDUCE, 3)] * 40)
    apart = np.tile([100, 10, 10, 10], 10)
    assert np.diff(steps(each, apart).start_ns).tolist() == [40] * 9
    assert len(steps(each).number) == 40  # nothing says more: each of them is a step


@pytest.mark.parametrize("sequence", [STEP, [(REDUCE, size) for size in range(60)]])
def test_what_does_not_repeat_is_no_step(sequence):
    assert beat(made(sequence)) is None


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


def marked(name, domain=""):
    return lambda made, number, start: made.range(name.format(number), start, start + 90 * US, domain=domain)


@pytest.mark.parametrize(
    ("marks", "source"),
    [
        ((), "inferred"),
        (("optimizer",), "optimizer"),
        (("marker", "optimizer"), "marker"),
        (("api", "marker", "optimizer"), "api"),
    ],
)
def test_who_says_where_steps_are(tmp_path, marks, source):
    known = {
        "api": marked("step {}", API_DOMAIN),
        "marker": marked("step {}"),
        "optimizer": marked("optimizer step {}", API_DOMAIN),
    }

    def mark(made, number, start):
        for each in marks:
            known[each](made, number, start)

    found = derive(job(Recorder(), mark=mark).activity(tmp_path))
    assert found.steps_from == source
    assert found.steps.rows >= 7
    sent = next(feed for feed in feeds(found, 0, 10**9, {Topic.STEP}))
    assert sent.steps_from == source


@pytest.mark.parametrize("ranges", [True, False], ids=["no payloads", "no ranges"])
def test_communicators_that_nccl_does_not_name_are_guessed_by_stream_and_operation(tmp_path, ranges):
    found = derive(job(Recorder(), payload=False, ranges=ranges).activity(tmp_path))
    assert {nccl.hash_text(c) for c in column(found.collectives, "communicator")} == {"~7 AllGather", "~7 AllReduce"}
    assert found.steps_from == "inferred"
    assert not found.steps["skipped"].any()
    assert (found.steps["compute_ns"][1:] == 40 * US).all()


def test_a_hash_is_no_guess():
    assert nccl.hash_text(0xDD318007BDA2B640) == "dd318007bda2b640"
    assert nccl.is_guess(np.array([0xDD318007BDA2B640, 0], np.uint64)).tolist() == [False, False]
    assert nccl.is_guess(nccl.guess(2**32 - 1, np.arange(12))).all()
