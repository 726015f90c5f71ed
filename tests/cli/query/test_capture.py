"""`drumline capture` waits with cheap questions until all ranks have answered, then the whole one."""

import time

import pytest

from drumline.cli.query import capture
from drumline.views.control.windows import COUNTS, ROWS, RankState, window_of_seconds


@pytest.fixture
def window(monkeypatch):
    monkeypatch.setattr(capture, "POLL_S", 0.0)
    return window_of_seconds("j", "r", [0], 5.0, time.time_ns())


def test_all_of_the_rows_are_asked_for_once_every_rank_has_answered_for_good(window):
    queries = []

    def states(sql):
        queries.append(sql)
        answer, kernels = ("done", 7) if len(queries) > 3 else ("running", 7 * (len(queries) > 1))
        return [RankState(0, "h", answer, "", kernels, 0, 2 * (sql == ROWS), 0, is_whole=sql == ROWS)]

    [state], first_s = capture._wait(states, window, [0])
    assert queries == [COUNTS, COUNTS, COUNTS, COUNTS, ROWS]
    assert (state.kernels, state.steps) == (7, 2)
    assert first_s is not None


def test_rows_that_are_not_stored_yet_are_asked_for_again_but_not_as_often(window, monkeypatch):
    monkeypatch.setattr(capture, "ROWS_S", 0.05)
    queries = []

    def states(sql):
        queries.append(sql)
        return [RankState(0, "h", "done", "", 0, 0, 0, 0, is_whole=queries.count(ROWS) > 2)]

    _, first_s = capture._wait(states, window, [0])
    assert queries.count(ROWS) == 3
    assert queries.count(COUNTS) > 3
    assert first_s is None


def test_where_answers_are_missing_at_the_end_the_whole_rows_are_printed(window, monkeypatch):
    monkeypatch.setattr(capture, "STORED_S", -60.0)
    states, first_s = capture._wait(lambda sql: [RankState(0, "h", "running", sql, 1, 0, 0, 0)], window, [0])
    assert [state.reason for state in states] == [ROWS]
    assert first_s is not None
