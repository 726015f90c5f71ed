"""Marks of the job: one way to mark, two sinks."""

from types import SimpleNamespace

import pytest

from drumline.producers.collector import marks, torch_hooks
from drumline.producers.collector.marks import FROM_API, FROM_OPTIMIZER, GRAPH_REPLAY, RANGE_BEGIN, RANGE_END, STEP_MARK
from drumline.producers.ipc.events import MARK_BEGIN, MARK_END
from drumline.producers.nccl_profiler import library


@pytest.fixture
def sinks(monkeypatch):
    """Return what came to the ring and to the decoder."""
    taken = SimpleNamespace(ring=[], decoder=[])
    monkeypatch.setattr(marks, "ring", lambda *mark: taken.ring.append(mark))
    monkeypatch.setattr(marks, "decoder", lambda *mark: taken.decoder.append(mark))
    monkeypatch.setattr(marks, "_api_numbers_steps", False)
    monkeypatch.setattr(marks, "_steps", marks.StepSeries("step", FROM_API))
    monkeypatch.setattr(marks, "at_mark", None)
    return taken


def test_a_step_goes_to_the_ring_and_to_the_decoder(sinks):
    for number in (7, 8):
        marks.step(number)
    assert sinks.ring == [(STEP_MARK, 7, "", FROM_API), (STEP_MARK, 8, "", FROM_API)]
    first, end, second = sinks.decoder
    assert (first[0], first[2], end, second[0], second[2]) == (
        MARK_BEGIN,
        "step 7",
        (MARK_END, first[1], ""),
        MARK_BEGIN,
        "step 8",
    )


def test_what_looks_for_a_policy_never_fails_a_step(sinks, monkeypatch):
    calls = []

    def fail():
        calls.append(1)
        raise LookupError

    monkeypatch.setattr(marks, "at_mark", fail)
    monkeypatch.setattr(marks, "SCAN_S", 0.0)
    monkeypatch.setattr(marks, "_scan_at", 0.0)
    for number in (1, 2):
        marks.step(number)
    assert calls == [1, 1]
    assert [number for _, number, *_ in sinks.ring] == [1, 2]


def test_a_decoder_that_comes_later_gets_no_end_without_a_begin(sinks, monkeypatch):
    decoder = marks.decoder
    monkeypatch.setattr(marks, "decoder", None)
    marks.step(1)
    with marks.scope("evaluate"):
        monkeypatch.setattr(marks, "decoder", decoder)
    marks.step(2)
    assert [flags for flags, *_ in sinks.decoder] == [MARK_BEGIN]


def test_where_the_job_numbers_its_steps_those_of_optimizers_are_not_in_the_ring(sinks):
    optimizer = marks.StepSeries("optimizer step", FROM_OPTIMIZER)
    optimizer.begin(0)
    marks.step(100)
    optimizer.begin(1)
    marks.step(101)
    assert [(number, source) for _, number, _, source in sinks.ring] == [
        (0, FROM_OPTIMIZER),
        (100, FROM_API),
        (101, FROM_API),
    ]
    assert [name for *_, name in sinks.decoder if name] == [
        "optimizer step 0",
        "step 100",
        "optimizer step 1",
        "step 101",
    ]


def test_a_range_has_a_begin_and_an_end_of_one_id_in_both(sinks):
    with marks.scope("evaluate"):
        pass
    (begin, end), (begun, ended) = sinks.ring, sinks.decoder
    assert (begin[0], begin[2], end[0]) == (RANGE_BEGIN, "evaluate", RANGE_END)
    assert begin[1] == end[1] == begun[1] == ended[1]


def test_what_a_job_gives_as_a_number_or_a_name_breaks_nothing(sinks, monkeypatch):
    monkeypatch.setattr(marks, "ring", lambda kind, number, name, source: 1 // 0)
    marks.step("seven")
    with marks.scope(None), marks.scope("\udcff"):
        marks.graph_replayed(object())


def test_replays_of_a_cuda_graph_are_marked_and_a_capture_is_known(sinks, monkeypatch):
    class Graph:
        def replay(self):
            return "replayed"

        def capture_begin(self, pool=None):
            return pool

        def capture_end(self):
            return "ended"

    numbers = iter([3, 8])
    monkeypatch.setattr(torch_hooks.library, "captured", lambda: next(numbers))
    monkeypatch.setattr(marks, "graph_was_captured", False)
    torch_hooks.graphs(Graph)
    graph = Graph()
    assert (graph.capture_begin(pool=3), marks.graph_was_captured) == (3, True)
    assert graph.capture_end() == "ended"
    assert (graph.replay(), graph.replay()) == ("replayed", "replayed")
    assert sinks.ring == [(GRAPH_REPLAY, id(graph), "", 3 << 32 | 8)] * 2


@pytest.mark.parametrize(
    ("setting", "calls"), [("0", [False, "begin", "end", True, False, "begin", True]), ("1", ["begin", "end", "begin"])]
)
def test_recording_is_off_while_a_graph_is_captured_that_is_not_to_be_recorded(sinks, monkeypatch, setting, calls):
    done = []

    class Graph:
        def replay(self):
            pass

        def capture_begin(self, fails=False):
            done.append("begin")
            if fails:
                raise RuntimeError

        def capture_end(self):
            done.append("end")

    monkeypatch.setenv("DRUMLINE_RINGS__GRAPHS", setting)
    monkeypatch.setattr(library, "record", done.append)
    torch_hooks.graphs(Graph)
    Graph().capture_begin()
    Graph().capture_end()
    with pytest.raises(RuntimeError):
        Graph().capture_begin(fails=True)
    assert done == calls


def test_a_window_is_looked_for_at_marks_about_four_times_a_second(sinks, monkeypatch):
    calls, now = [], iter((0.0, 0.0, 0.1, 0.2, 0.3, 0.3, 0.4))
    monkeypatch.setattr(marks, "at_mark", lambda: calls.append(len(sinks.ring)))
    monkeypatch.setattr(marks, "_scan_at", 0.0)
    monkeypatch.setattr(marks.time, "monotonic", lambda: next(now))
    for number in range(5):
        marks.step(number)
    assert calls == [0, 3]
