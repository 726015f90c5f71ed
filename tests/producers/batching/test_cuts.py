"""Plan of batches: no row lost, watermarks that hold, heartbeats in silence."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.producers.batching.cuts import plan_batches

MS, S = 1_000_000, 1_000_000_000
FIRST = 5 * S
rows = st.lists(st.tuples(st.integers(0, 4 * S), st.integers(0, 2 * S)), max_size=60)


def plan_of(spans, last=12 * S, **more):
    start = np.array([FIRST + s for s, _ in spans], np.int64)
    ready = np.array([FIRST + s + d for s, d in spans], np.int64)
    return start, ready, plan_batches(start, ready, FIRST, last, **more)


@settings(deadline=None)
@given(rows, st.integers(1, 7))
def test_invariants(spans, max_rows):
    start, ready, plan = plan_of(spans, max_rows=max_rows)
    sent = np.concatenate([plan.order[a:b] for a, b in zip(plan.low, plan.high, strict=True)] or [[]])
    assert sorted(sent.tolist()) == list(range(len(spans)))  # every row once
    assert (plan.high - plan.low <= max_rows).all()
    assert (np.diff(plan.time_ns) >= 0).all()
    assert (np.diff(plan.watermark_ns) >= 0).all()
    assert (plan.watermark_ns <= plan.time_ns).all()
    for i, (a, b) in enumerate(zip(plan.low, plan.high, strict=True)):
        assert (ready[plan.order[a:b]] <= plan.time_ns[i]).all()  # nothing is sent before it has happened
        assert (ready[plan.order[a:b]] > plan.time_ns[i] - 501 * MS).all()  # nor held back
        later = start[plan.order[b:]]
        assert (later >= plan.watermark_ns[i]).all()
    assert np.diff(np.concatenate([[FIRST], plan.time_ns])).max() <= 1 * S  # never silent for more than a second
    assert plan.time_ns[-1] == plan.watermark_ns[-1] == 12 * S  # the final batch: complete


def test_full_batches_leave_at_once_and_the_rest_with_the_flush():
    _, ready, plan = plan_of([(i, 0) for i in range(10)], max_rows=4)
    assert (plan.high - plan.low).tolist()[:3] == [4, 4, 2]
    assert plan.time_ns[:3].tolist() == [ready[3], ready[7], FIRST + 500 * MS]


def test_a_long_row_holds_the_watermark_back_but_not_the_others():
    _, _, plan = plan_of([(0, 3 * S), (10 * MS, 1), (2 * S, 1)])
    first = int(np.flatnonzero(plan.high > plan.low)[0])
    assert plan.time_ns[first] == FIRST + 500 * MS
    assert plan.watermark_ns[first] == FIRST  # the long one began there and is still to come


def test_least_later_is_the_smallest_value_not_sent_yet():
    _, _, plan = plan_of([(0, 0), (600 * MS, 0), (1_200 * MS, 0)], last=7 * S)
    values = np.array([7, 3, 5])
    assert plan.least_later(values)[:3].tolist() == [3, 5, np.iinfo(np.int64).max]


def test_a_process_without_rows_still_sends_heartbeats():
    plan = plan_batches(np.empty(0, np.int64), np.empty(0, np.int64), FIRST, FIRST + 2_500 * MS)
    assert plan.time_ns.tolist() == [FIRST + S, FIRST + 2 * S, FIRST + 2_500 * MS]
    assert (plan.high == 0).all()
