"""The state of a run: its newest window, newest revision and evaluation; a standstill outranks it."""

import numpy as np
import pytest
from support.verdict_worlds import NOW, SECOND, hang, healthy_job, late_job, wide_window

from drumline.views.exporter.run_state import STANDSTILL_NS, RunState

EXPIRE = 600 * SECOND


def state_of(*batches):
    state = RunState()
    for batch in batches:
        (state.take_hang if batch.topic == "gpu.hang.v1" else state.take_window)(batch)
    return state


def test_the_worst_rank_is_the_jobs_state_with_its_cause():
    verdict = state_of(late_job()).verdict(NOW)
    assert (verdict.rank, verdict.state, verdict.cause) == (3, "critical", "host_stall")
    assert 0.2 < verdict.lost_ratio < 0.5
    assert state_of(healthy_job()).verdict(NOW).state == "ok"


def test_a_higher_revision_of_a_window_counts_and_a_lower_one_does_not():
    first, second = late_job(revision=1, ranks_seen=7), late_job(revision=2, ranks_seen=8)
    for order in ((first, second), (second, first)):
        assert state_of(*order).window.envelope["ranks_seen"] == 8


def test_another_evaluation_of_a_window_counts_if_it_came_later():
    state = state_of(late_job(evaluation="a/20", revision=5), healthy_job(evaluation="b/20", revision=0))
    assert state.verdict(NOW).state == "ok"


def test_an_older_window_does_not_replace_a_newer_one_also_of_a_restarted_attempt():
    newer = late_job(first_step=0, last_step=19)
    older = healthy_job(NOW - 60 * SECOND, first_step=400, last_step=419)
    assert state_of(newer, older).verdict(NOW).state == "critical"
    assert state_of(older, newer).verdict(NOW).state == "critical"


def test_a_window_without_a_verdict_is_never_ok():
    window = healthy_job()
    window.columns["severity"] = np.full(window.rows, -1, "i1")  # the alarm before it may have been ok
    state = state_of(window)
    assert state.verdict(NOW).state == "insufficient_data"
    assert {state.window.row(at).state for at in state.window.ranks} == {"insufficient_data"}
    assert RunState().verdict(NOW).state == "insufficient_data"


def test_an_alarm_outranks_that_the_job_as_a_whole_was_not_evaluated():
    window = late_job()
    severity = window.columns["severity"].copy()
    severity[window.columns["rank"] == -1] = -1
    window.columns["severity"] = severity
    assert state_of(window).verdict(NOW).state == "critical"


@pytest.mark.parametrize(("name", "severity"), [("hung", 3), ("standing", 1)])
def test_a_standstill_outranks_the_verdict_until_the_job_moves(name, severity):
    state = state_of(healthy_job(), hang(name, (5,)))
    verdict = state.verdict(NOW)
    assert (verdict.state, verdict.cause, verdict.severity) == (name, "not_called", severity)
    assert [(row.rank, row.host, row.state) for row in state.awaited(NOW).values()] == [(5, "h5", name)]
    state.take_hang(hang("moving", time_ns=NOW + SECOND, revision=1))
    assert state.verdict(NOW).state == "ok"
    assert state.awaited(NOW) == {}


def test_an_older_record_of_a_standstill_does_not_bring_it_back():
    state = state_of(hang("moving", time_ns=NOW, revision=2))
    assert not state.take_hang(hang("hung", (1,), time_ns=NOW - 9 * SECOND, revision=1))
    assert state.standstill(NOW) == ""


def test_a_run_ends_after_its_last_window_and_one_that_hangs_stays():
    state = state_of(late_job(NOW))
    assert state.is_live(NOW + EXPIRE, EXPIRE)
    assert not state.is_live(NOW + EXPIRE + 1, EXPIRE)
    state.take_hang(hang("hung", (5,), time_ns=NOW))
    assert state.is_live(NOW + 3 * EXPIRE, EXPIRE)
    assert not state.is_live(NOW + STANDSTILL_NS + 1, EXPIRE), "its worker would have reported the end"
    state.take_hang(hang("over", time_ns=NOW + SECOND, revision=1))
    assert not state.is_live(NOW + 3 * EXPIRE, EXPIRE)


def test_ranks_are_ordered_by_alarm_then_by_cost():
    window = state_of(wide_window(64, late=(5, 60, 17))).window
    assert [window.row(at).rank for at in window.by_badness()[:4]] == [17, 60, 5, 63]
