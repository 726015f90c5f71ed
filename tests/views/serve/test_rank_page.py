"""Rows that the page of a rank reads."""

import threading

import pytest

from drumline.views.report import queries as report_queries
from drumline.views.report.data import NoSuchRun
from drumline.views.report.loading import MOST_STEPS
from drumline.views.serve import queries
from drumline.views.serve.queries import MOST_RANKS
from drumline.views.serve.rank_page import rank_page

RUN = {"run": "r1", "started": "2026-01-02 00:00:00", "ended": "2026-01-02 00:01:00", "ranks": 3, "steps": 100}
EXHAUSTIVE = {queries.BUDGET, queries.HOST, queries.DEVICE_TIMES}
OF_SOME = {queries.BUDGET_OF_SOME, queries.HOST_OF_SOME, queries.DEVICE_TIMES_OF_SOME}


class Stored:
    """Answers the page's queries as a run with three ranks and no verdict; remembers their parameters."""

    def __init__(self, steps=100, ranks=3):
        self.parameters_of = {}
        self._lock = threading.Lock()
        self._rows = {
            report_queries.RUNS: [RUN | {"steps": steps, "ranks": ranks}],
            report_queries.LABELS: [{"labels": {}}],
            report_queries.RANKS: [{"rank": rank} for rank in range(3)],
            report_queries.WINDOWS: [{"windows": 1, "evaluated": 1, "evaluated_s": 60.0}],
            report_queries.EXTENT: [{"ns": 60_000_000_000, "overlaps": 1}],
            queries.PROCESS: [{"host": "h"}],
            queries.SOME_RANKS: [{"rank": 1}, {"rank": 2}],
        }

    def __call__(self, sql, parameters):
        with self._lock:
            self.parameters_of[sql] = parameters
        return self._rows.get(sql, [])


@pytest.mark.parametrize(("steps", "ranks"), [(MOST_STEPS, MOST_RANKS + 1), (MOST_STEPS + 1, MOST_RANKS)])
def test_a_rank_is_shown_beside_all_its_peers(steps, ranks):
    stored = Stored(steps, ranks)
    assert rank_page(stored, "j", "", 1, "", "").peers == 0
    assert stored.parameters_of.keys() >= EXHAUSTIVE
    assert not stored.parameters_of.keys() & OF_SOME


def test_in_a_large_run_a_rank_is_shown_beside_some_peers():
    stored = Stored(MOST_STEPS + 1, MOST_RANKS + 1)
    assert rank_page(stored, "j", "", 1, "", "").peers == 1
    assert not stored.parameters_of.keys() & EXHAUSTIVE
    assert [stored.parameters_of[sql]["ranks"] for sql in OF_SOME] == [[1, 2]] * 3


def test_a_rank_without_a_process_window_or_verdict_is_missing():
    stored = Stored()
    stored._rows[queries.PROCESS] = []
    with pytest.raises(NoSuchRun, match="has no rank 1 in run 'r1'; it has 3 ranks"):
        rank_page(stored, "j", "", 1, "", "")
