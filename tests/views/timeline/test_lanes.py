"""Spans of a track become nested slices, whatever overlaps."""

from hypothesis import given
from hypothesis import strategies as st

from drumline.views.timeline.lanes import Span, edges

SPANS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=40)


def lanes_of(spans, nests):
    """Lane -> [(begin, end, depth)], as a reader of the trace sees it. Fails where time goes back."""
    slices, open_spans, times = {}, {}, {}
    for lane, time, span in edges(spans, nests=nests):
        assert time >= times.get(lane, 0)
        times[lane] = time
        stack = open_spans.setdefault(lane, [])
        if span is None:
            begin = stack.pop()
            slices.setdefault(lane, []).append((begin, time, len(stack)))
        else:
            stack.append(span.begin)
    assert not any(open_spans.values())
    return slices


@given(SPANS)
def test_no_span_is_lost_or_changed_and_none_overlaps_in_its_lane(pairs):
    spans = [Span(begin, begin + ns, "k") for begin, ns in pairs]
    slices = lanes_of(spans, nests=False)
    assert sorted((b, e) for lane in slices.values() for b, e, _ in lane) == sorted((s.begin, s.end) for s in spans)
    assert all(depth == 0 for lane in slices.values() for *_, depth in lane)


@given(SPANS)
def test_nested_spans_keep_their_ends(pairs):
    spans = [Span(begin, begin + ns, "r") for begin, ns in pairs]
    slices = lanes_of(spans, nests=True)
    assert sorted((b, e) for lane in slices.values() for b, e, _ in lane) == sorted((s.begin, s.end) for s in spans)


def test_ranges_within_ranges_share_a_lane_and_what_only_overlaps_does_not():
    nested = [Span(0, 10, "outer"), Span(0, 10, "same"), Span(2, 5, "inner"), Span(5, 10, "next")]
    assert lanes_of(nested, nests=True) == {0: [(2, 5, 2), (5, 10, 2), (0, 10, 1), (0, 10, 0)]}
    assert set(lanes_of([*nested, Span(9, 12, "across")], nests=True)) == {0, 1}
