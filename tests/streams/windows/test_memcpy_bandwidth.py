"""Memcpy bandwidth per direction and memory kinds."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.labs.windows import Lab, MemcpyBandwidth, copies

COPIES = st.lists(
    st.tuples(st.floats(0, 30), st.integers(0, 10**9), st.integers(0, 2**40), *(st.integers(0, 255),) * 3), max_size=30
)


def test_pageable_and_pinned_copies_stand_apart():
    lab = Lab(MemcpyBandwidth())
    lab.feed(
        copies([(1, 1000, 4096, 1, 1, 3), (2, 500, 8192, 1, 2, 3), (3, 200, 10, 1, 2, 3), (4, 5, 64, 64, 0, 3)], 11)
    )
    [batch] = [b for (_, w), b in lab.results.items() if w == 0]
    names = ("kind", "src_kind", "dst_kind", "copies", "bytes", "busy_ns", "max_ns")
    rows = zip(*(batch.columns[name].tolist() for name in names), strict=True)
    assert list(rows) == [(1, 1, 3, 1, 4096, 1000, 1000), (1, 2, 3, 2, 8202, 700, 500), (64, 0, 3, 1, 64, 5, 5)]


@settings(max_examples=60, deadline=None)
@given(st.lists(COPIES, max_size=5))
def test_every_copy_is_in_one_window_of_a_tiling_or_counted_as_late(feeds):
    lab = Lab(MemcpyBandwidth())
    for n, rows in enumerate(feeds):
        batch = copies(rows, watermark=9 * n + 1)
        lab.feed(batch, offset=2 * n)
        lab.feed(batch, offset=2 * n)
        lab.feed(batch, offset=2 * n + 1)
    lab.silence()
    lab.silence()
    assert sum(lab.audit()) == sum(map(len, feeds))
