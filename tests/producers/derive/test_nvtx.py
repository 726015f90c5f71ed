"""Pairs and nesting of NVTX ranges."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.activity_builder import GEMM, Recorder, column

from drumline.producers.derive.nvtx import nesting, ranges


def nested(tmp_path, *spans):
    recorder = Recorder()
    for name, start, end in spans:
        recorder.range(name, start, end)
    recorder.kernel(GEMM, 1, 2)
    return ranges(recorder.activity(tmp_path).markers)


def test_parents_and_depth(tmp_path):
    spans = (("epoch", 10, 1000), ("step", 20, 500), ("forward", 20, 200), ("backward", 200, 400), ("step", 500, 900))
    table, unfinished = nested(tmp_path, *spans)
    assert column(table, "id") == [1, 2, 3, 4, 5]
    assert column(table, "parent_id") == [0, 1, 2, 2, 1]
    assert column(table, "depth") == [0, 1, 2, 2, 1]
    assert column(table, "duration_ns") == [990, 480, 180, 200, 400]
    assert unfinished == 0


def test_ranges_of_two_threads_that_cross_have_the_parent_that_contains_both(tmp_path):
    table, _ = nested(tmp_path, ("step", 0 + 1, 100), ("loader", 10, 50), ("forward", 20, 80), ("inner", 60, 70))
    assert column(table, "parent_id") == [0, 1, 1, 3]


def test_a_range_that_never_ended_is_counted_and_left_out(tmp_path):
    table, unfinished = nested(tmp_path, ("init", 5, None), ("step", 10, 20))
    assert column(table, "parent_id") == [0]
    assert (table.rows, unfinished) == (1, 1)


def test_no_markers_at_all(tmp_path):
    table, unfinished = nested(tmp_path)
    assert (table.rows, unfinished) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30))
def test_nesting_is_the_innermost_range_that_contains(spans):
    ordered = sorted((start, -length) for start, length in spans)
    start = np.array([s for s, _ in ordered], np.int64)
    end = np.array([s - n for s, n in ordered], np.int64)
    parent, depth = nesting(start, end)
    for i in range(len(start)):
        containing = [j for j in range(i) if end[j] >= end[i]]
        assert parent[i] == (containing[-1] if containing else -1)
        assert depth[i] == (depth[parent[i]] + 1 if containing else 0)
