"""Shares of requests in their iterations' time: they sum to it, and nothing is shared out before it is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fake_engine import FakeEngine, Load

from drumline.producers.serving.request_shares import UNKNOWN, RequestShares

BATCH = [(1, 3), (2, 1), (3, 7)]


def filled(numbers=(1, 2, 3)):
    shares = RequestShares()
    for number in numbers:
        shares.begin(number, {}, 0)
    return shares


def run(shares, batches, gpu=True):
    for number, (tokens, time_ns) in enumerate(batches):
        shares.new_batch(tokens, {})
        shares.iteration(number, 10 * number, time_ns, gpu_follows=gpu)
        if gpu:
            shares.gpu_time(number, time_ns)


def finished(shares):
    return dict(zip(list(shares.requests), shares.finish(1_000), strict=True))


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 5_000), min_size=1, max_size=6), st.integers(0, 10**12)),
        min_size=1,
        max_size=8,
    )
)
def test_shares_are_whole_and_sum_to_the_time_of_all_iterations(batches):
    shares = filled(range(1, 7))
    run(shares, [([(at + 1, count) for at, count in enumerate(counts)], time_ns) for counts, time_ns in batches])
    over = list(shares.finish(1))
    total = sum(time_ns for _, time_ns in batches)
    assert sum(max(request.gpu_ns, 0) for request in over) == total
    assert sum(request.host_ns for request in over) == total


def test_a_share_is_by_tokens_and_the_prompts_part_of_it():
    shares = filled()
    shares.new_batch(BATCH, {3: 7})
    shares.iteration(5, 100, 1_100, gpu_follows=True)
    shares.gpu_time(5, 1_100)
    over = finished(shares)
    assert [over[n].gpu_ns for n in (1, 2, 3)] == [300, 100, 700]
    assert [over[n].prefill_gpu_ns for n in (1, 2, 3)] == [0, 0, 700]
    assert (over[3].first_iteration, over[3].last_iteration, over[3].iterations) == (5, 5, 1)
    assert over[1].first_start_ns == 100


def test_the_same_batch_again_counts_each_iteration():
    shares = filled()
    shares.new_batch(BATCH, {})
    for number in range(4):
        shares.iteration(number, number, 11, gpu_follows=True)
        shares.gpu_time(number, 110)
    request = finished(shares)[3]
    assert (request.iterations, request.first_iteration, request.last_iteration) == (4, 0, 3)
    assert (request.gpu_ns, request.host_ns) == (280, 28)


def test_a_request_that_ended_waits_for_its_gpu_time_and_for_nothing_else():
    shares = filled()
    shares.new_batch(BATCH, {})
    shares.iteration(0, 0, 11, gpu_follows=True)
    shares.end(1, {"outcome": "stop"}, 20)
    assert list(shares.ended(1_000)) == []
    shares.gpu_time(0, 110)
    [request] = shares.ended(1_000)
    assert (request.gpu_ns, request.end["outcome"]) == (30, "stop")
    assert list(shares.ended(1_000)) == []


def test_a_request_that_just_ended_is_kept_for_an_iteration_scheduled_before():
    shares = filled()
    run(shares, [(BATCH, 110)])
    shares.end(1, {}, 500)
    assert list(shares.ended(500)) == []
    assert len(list(shares.ended(501))) == 1


def test_without_gpu_times_a_request_has_none_but_host_time():
    shares = filled()
    run(shares, [(BATCH, 110)], gpu=False)
    first = finished(shares)[1]
    assert (first.gpu_ns, first.prefill_gpu_ns, first.host_ns) == (UNKNOWN, UNKNOWN, 30)


def test_time_of_requests_that_are_not_known_is_not_attributed():
    shares = filled([1])
    run(shares, [(BATCH, 110)])
    assert (shares.unknown, [r.gpu_ns for r in shares.finish(1)]) == (2, [30])


def test_what_is_open_when_the_engine_ends_is_lost():
    shares = filled([1])
    assert [r.end["outcome"] for r in shares.finish(9)] == ["lost"]


@pytest.mark.parametrize("load", [Load(), Load(kv_blocks=200, per_s=60.0), Load(adapters=("a", "b", ""))])
def test_a_whole_load_is_shared_out_without_a_rest(load):
    shares, numbers, total = RequestShares(), {}, 0
    for came, iteration in FakeEngine(load).run(5_000_000_000):
        for request in came:
            numbers[request.name] = len(numbers) + 1
            shares.begin(numbers[request.name], {"adapter": request.adapter}, request.start_ns)
        shares.new_batch([(numbers[name], count) for name, count in iteration.tokens.items()], {})
        shares.iteration(iteration.number, iteration.start_ns, iteration.duration_ns, gpu_follows=True)
        shares.gpu_time(iteration.number, iteration.gpu_ns)
        total += iteration.gpu_ns if iteration.tokens else 0
    assert sum(max(request.gpu_ns, 0) for request in shares.finish(0)) == total
