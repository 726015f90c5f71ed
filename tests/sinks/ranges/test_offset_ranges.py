"""Range algebra: what a crash may rely on holds for every set of offsets."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.sinks.ranges.offset_ranges import Intervals, OffsetRange, pack, unpack

offsets = st.sets(st.integers(0, 300), max_size=60)


@given(offsets, st.integers(0, 10**12))
def test_packed_offsets_come_back_whole(values, base):
    moved = {base + v for v in values}
    assert unpack(pack(moved, base), base, base + 300) == moved


@given(st.text(alphabet="0123456789,-", max_size=12))
def test_a_damaged_set_is_refused_or_stays_within_its_range(text):
    try:
        unpacked = unpack(text, 100, 140)
    except ValueError:
        return
    assert all(100 <= v <= 140 for v in unpacked)


def test_runs_are_what_keeps_it_short():
    assert pack(range(1_000, 2_000), 1_000) == "0-999"
    assert pack({5, 7, 8, 9}, 5) == "0,2-4"
    with pytest.raises(ValueError):
        pack({4}, 5)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_intervals_are_a_set(values):
    intervals, reference = Intervals(), set()
    for value in values:
        assert intervals.add(value) == (value not in reference)
        reference.add(value)
    assert [v for v in range(-2, 43) if v in intervals] == sorted(reference)
    spans = list(intervals)
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(spans)), "disjoint and not touching"


@given(offsets, st.integers(0, 300), st.integers(0, 300))
def test_gaps_are_exactly_what_is_missing(values, a, b):
    first, last = min(a, b), max(a, b)
    missing = {v for low, high in Intervals(values).gaps(first, last) for v in range(low, high + 1)}
    assert missing == set(range(first, last + 1)) - values


def test_tokens_distinguish_ranges_partitions_and_incarnations():
    ranges = [OffsetRange(t, p, f, f + n) for t in ("a", "b") for p in (0, 1) for f in (0, 1) for n in (0, 1)]
    assert len({r.token for r in ranges}) == len(ranges)
    with pytest.raises(ValueError):
        OffsetRange("a", 0, 5, 4)
