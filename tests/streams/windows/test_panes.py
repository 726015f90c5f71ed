"""Panes: whatever the split, sums, extremes and quantiles are those of all rows together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.streams.windows.panes import (
    BUCKET_BITS,
    MAX_CELLS,
    RELATIVE_ERROR,
    Pane,
    buckets,
    coarsen,
    combine,
    pack_pane,
    pane_of_rows,
    quantiles,
    unpack_pane,
)

DURATIONS = st.integers(0, 2**40)
ROWS = st.lists(st.tuples(st.integers(0, 300), DURATIONS), max_size=60)


def pane(rows):
    ids = np.array([group for group, _ in rows], np.uint32)
    duration = np.array([d for _, d in rows], np.uint64)
    return pane_of_rows(ids, (np.ones(len(rows), np.uint64), duration), (duration,), (duration,), buckets(duration))


def expected(rows):
    groups = {}
    for group, duration in rows:
        groups.setdefault(group, []).append(duration)
    return {g: (len(d), sum(d), min(d), max(d)) for g, d in sorted(groups.items())}


def rows_of(p):
    columns = zip(p.sums[0], p.sums[1], p.minima[0], p.maxima[0], strict=True)
    return {int(g): tuple(map(int, values)) for g, values in zip(p.ids, columns, strict=True)}


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in Pane.__slots__)


@given(ROWS, st.integers(0, 60))
def test_a_pane_of_parts_is_the_pane_of_all_rows(rows, cut):
    whole = pane(rows)
    assert rows_of(whole) == expected(rows)
    assert same(combine([pane(rows[:cut]), pane(rows[cut:])]), whole)
    assert same(combine([pane(rows[cut:]), pane([]), pane(rows[:cut])]), whole)


@given(ROWS)
def test_a_packed_pane_comes_back_as_it_was(rows):
    back, offset = unpack_pane(pack_pane(pane(rows), 41))
    assert offset == 41
    assert same(back, pane(rows))


def test_a_state_value_of_another_version_is_refused():
    with pytest.raises(ValueError, match="version 9"):
        unpack_pane(b"\x09" + pack_pane(pane([(1, 2)]), 0)[1:])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2**50)), min_size=1, max_size=80), st.floats(0, 1))
def test_quantiles_are_within_the_documented_error(rows, share):
    p = pane(rows)
    [result] = quantiles(p, [share])
    for group, value in zip(p.ids, result, strict=True):
        durations = sorted(d for g, d in rows if g == group)
        true = durations[int(np.floor(share * (len(durations) - 1)))]
        assert abs(value - true) <= RELATIVE_ERROR * true * 1.0001


def test_a_pane_with_too_many_histogram_cells_is_coarsened_and_loses_no_row():
    rng = np.random.default_rng(3)
    cells = np.unique(rng.integers(0, 4096 << BUCKET_BITS, 3 * MAX_CELLS).astype(np.uint32))
    fine = Pane(*(np.zeros((1, 0), np.uint64),) * 4, cells, np.ones(len(cells), np.uint32))
    coarse = coarsen(fine)
    assert len(coarse.cells) <= MAX_CELLS
    assert coarse.counts.sum() == len(cells)
    assert set(coarse.cells >> BUCKET_BITS) == set(cells >> BUCKET_BITS)
