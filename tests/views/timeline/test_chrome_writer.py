"""Chrome's trace events: each span begins and ends once on its track, and times are microseconds of the trace."""

import gzip
import json
from collections import Counter

import pytest

from drumline.views.timeline.chrome_writer import ChromeWriter
from drumline.views.timeline.lanes import Span

START = 1_700_000_000_000_000_000


def events(writer):
    return json.loads(gzip.decompress(writer.serialized()))["traceEvents"]


@pytest.fixture
def written():
    writer = ChromeWriter(START)
    for rank in range(2):
        process = writer.process(f"rank {rank}", rank, ["node-a", "H200"])
        spans = [
            Span(START + 1_500, START + 4_000, "step 7", (("step", 7),)),
            Span(START + 2_000, START + 3_000, "AllReduce", flow=9),
        ]
        writer.spans(process, "steps", 0, spans, nests=True)
        writer.counter(process, "power", "W", 1, [(START, 400.0), (START + 1_000, 410.5)])
        track = writer.track(process, "stacks", 2)
        writer.sample(track, START + 2_000, [("main", "a.py", 1), ("step", "b.py", 2)], 3)
    return writer


def test_spans_begin_and_end_once_in_the_order_of_time(written):
    kinds = Counter(event["ph"] for event in events(written))
    assert kinds["B"] == kinds["E"] == written.slices == 4
    first_edges = [e for e in events(written) if e["pid"] == 0 and e["ph"] in "BE"]
    assert [(e["ph"], e["ts"]) for e in first_edges] == [("B", 1.5), ("B", 2.0), ("E", 3.0), ("E", 4.0)]
    assert first_edges[0]["args"] == {"step": 7}


def test_a_collective_is_joined_from_the_first_rank_to_the_others(written):
    flows = [(e["ph"], e["id"], e["pid"]) for e in events(written) if e["ph"] in "st"]
    assert flows == [("s", 9, 0), ("t", 9, 1)]


def test_what_overlaps_without_nesting_gets_another_track():
    writer = ChromeWriter(START)
    spans = [Span(START, START + 20, "a"), Span(START + 10, START + 30, "b")]
    writer.spans(writer.process("rank 0", 0, []), "stream 7", 0, spans)
    tracks = {e["tid"] for e in events(writer) if e["ph"] == "B"}
    assert len(tracks) == 2
    assert {e["tid"] for e in events(writer) if e["name" if "name" in e else "ph"] == "thread_name"} == tracks


def test_counters_and_samples_have_their_values(written):
    counters = [e for e in events(written) if e["ph"] == "C" and e["pid"] == 1]
    assert [e["args"] for e in counters] == [{"power": 400.0}, {"power": 410.5}]
    sample = next(e for e in events(written) if e["ph"] == "i")
    assert (sample["name"], sample["args"]["samples"]) == ("step (b.py:2)", 3)


def test_the_same_events_give_the_same_bytes(written):
    assert written.serialized() == written.serialized()
