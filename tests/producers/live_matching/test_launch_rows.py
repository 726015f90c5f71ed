"""Launches of a deep window: matched with what they launched, in whatever order the two arrive, or counted."""

import numpy as np

from drumline.producers.activity.table import Table
from drumline.producers.live_matching.launch_rows import KEPT_NS, LaunchRows
from drumline.schemas.topics import Topic

S = 1_000_000_000
T = 1_700_000_000 * S
MAIN, AUTOGRAD = 7, 8


class Writer:
    def __init__(self):
        self.rows = []

    def write(self, topic, table, progress):
        assert topic is Topic.LAUNCH
        names = ("correlation", "thread", "sampled")
        texts = [[table.dictionaries[f"{name}s"][i] for i in table[name].tolist()] for name in ("scope", "stack")]
        self.rows += list(zip(*(table[name].tolist() for name in names), *texts, strict=True))

    @property
    def correlations(self):
        return [row[0] for row in self.rows]


def calls(*rows):
    """Driver calls: (correlation, start, thread)."""
    correlation, start, thread = zip(*rows, strict=True)
    return Table({
        "correlation": np.array(correlation, np.uint32), "start_ns": np.array(start, np.int64),
        "duration_ns": np.full(len(rows), 2_000, np.uint64), "thread": np.array(thread, np.uint32),
    })  # fmt: skip


def ran(*rows):
    correlation, start = zip(*rows, strict=True)
    return Table({"correlation": np.array(correlation, np.uint32), "start_ns": np.array(start, np.int64)})


NOTHING = Table({})


def launches(sample=lambda thread, time_ns: ("", "", 0, -1)):
    writer = Writer()
    rows = LaunchRows(writer, sample)
    rows.request(True, T)
    return rows, writer


def test_only_calls_that_launched_have_rows_and_a_graphs_kernels_share_one():
    rows, writer = launches()
    rows.add(calls((1, T + 10, MAIN), (2, T + 20, MAIN), (3, T + 30, MAIN)), NOTHING, NOTHING)
    rows.advance(T + S, T + S)
    assert writer.rows == [], "nothing has run yet"
    rows.add(NOTHING, ran((1, T + 100), (1, T + 200)), ran((3, T + 300)))
    rows.advance(T + 2 * S, T + 2 * S)
    assert writer.correlations == [1, 3]
    rows.add(NOTHING, ran((1, T + 400)), NOTHING)
    rows.advance(T + 3 * S, T + 3 * S, final=True)
    assert writer.correlations == [1, 3], "once"
    assert not rows.counts


def test_a_kernel_whose_launch_does_not_come_is_counted_once_and_only_if_one_was_expected():
    rows, writer = launches()
    rows.add(NOTHING, ran((90, T - 5), (91, T + 5)), NOTHING)
    rows.advance(T + S, T + S)
    rows.add(calls((1, T + 10, MAIN)), ran((1, T + 20), (92, T + 30)), ran((93, T + 40)))
    rows.advance(T + S, T + S)
    assert not rows.counts, "its launch may still come"
    for _ in range(2):
        rows.advance(T + 2 * KEPT_NS, T + 2 * KEPT_NS)
    assert rows.counts["kernels_without_launch"] == 1, "92; the first two were launched before"
    assert writer.correlations == [1]


def test_calls_wait_until_all_marks_before_them_have_arrived():
    rows, writer = launches()
    rows.add(calls((1, T + 10, MAIN), (2, T + 5 * S, MAIN)), ran((1, T + 20), (2, T + 5 * S + 20)), NOTHING)
    rows.advance(T + 6 * S, T + S)
    assert writer.correlations == [1]
    rows.scopes.mark(MAIN, T + 4 * S, 2, 1, "forward")
    rows.advance(T + 6 * S, T + 6 * S)
    assert [row[3] for row in writer.rows] == ["", "forward"]


def test_each_launch_has_the_last_sample_before_it():
    rows, writer = launches(lambda thread, time_ns: (f"main (a.py:{thread})", "", 1, 5))
    rows.add(calls((1, T + 10, MAIN), (2, T + 20, AUTOGRAD)), ran((1, T + 20), (2, T + 30)), NOTHING)
    rows.advance(T + S, T + S)
    assert [(row[1], row[2], row[4]) for row in writer.rows] == [(7, 1, "main (a.py:7)"), (8, 1, "main (a.py:8)")]


def test_what_is_launched_after_the_window_is_no_part_of_it():
    rows, writer = launches()
    rows.add(calls((1, T + 10, MAIN)), ran((1, T + 20)), NOTHING)
    rows.request(False, T + S)
    assert rows.wants(T + 2 * S)
    rows.add(calls((2, T + 2 * S, MAIN)), ran((2, T + 2 * S)), NOTHING)
    rows.advance(T + 3 * S, T + 3 * S, final=True)
    assert writer.correlations == [1]
    assert not rows.counts
    assert not rows.wants(T + 2 * S + KEPT_NS)
