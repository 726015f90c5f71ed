"""Recall over time: counted from a fault's begin to the end of the window that names it; a wrong rank is no name."""

import numpy as np

from drumline.lab.evaluate.curve.job_rows import StepTimes
from drumline.lab.evaluate.curve.recall import FaultPhase, recall, share_within
from drumline.lab.evaluate.scoring import INSUFFICIENT, WARNING, WHOLE_JOB
from drumline.views.verdict.verdict_rows import VerdictRow

TIMES = StepTimes(np.arange(400), np.full(400, 5e7), np.arange(400))
FAULT = FaultPhase("late", 30, 149, (1,))


def window(first, severities, share=0.2, cause="host_stall", detail=""):
    return [
        VerdictRow(first, first + 19, rank, severity, cause, detail, share if severity >= WARNING else 0.01)
        for rank, severity in severities.items()
    ]


def rows(named_windows, rank=1, until=200):
    return [
        row
        for first in range(0, until, 20)
        for row in window(first, {WHOLE_JOB: 0, 0: 0, 1: 0} | ({rank: WARNING} if first in named_windows else {}))
    ]


def test_a_name_counts_from_the_begin_of_the_fault_to_the_end_of_its_window():
    result = recall(FAULT, rows({60, 80, 100, 120}), TIMES)
    assert (result.steps, result.seconds) == (50, 2.5)
    assert (result.lasted_steps, result.stays) == (120, True)
    assert [result.within_steps(most) for most in (40, 60, 200)] == [False, True, None]
    assert [result.within_seconds(most) for most in (2, 3, 12)] == [False, True, None]


def test_the_window_in_which_the_fault_begins_may_name_it():
    assert recall(FAULT, rows({20}), TIMES).steps == 10


def test_a_gap_between_names_is_not_staying_named():
    result = recall(FAULT, rows({40, 60, 100}), TIMES)
    assert (result.steps, result.named, result.whole, result.stays) == (30, 3, 5, False)


def test_a_rank_named_beside_the_fault_is_wrong_and_no_recall():
    result = recall(FAULT, rows({40, 60, 80}, rank=0), TIMES)
    assert (result.steps, result.wrong) == (None, 3)
    assert not result.stays


def test_names_before_and_after_the_fault_do_not_count():
    assert recall(FAULT, rows({0, 160, 180}), TIMES).steps is None


def test_a_suspect_is_no_name():
    suspects = [row for first in range(40, 140, 20) for row in window(first, {0: 0, 1: WARNING - 1})]
    assert recall(FAULT, suspects, TIMES).steps is None


def test_a_slow_link_is_named_by_the_job_with_its_cause_only():
    fault = FaultPhase("link", 30, 149, (), ("slow_link",))
    for cause, steps in (("slow_link", 30), ("changed_job", None)):
        job = window(40, {WHOLE_JOB: WARNING, 0: 0, 1: 0}, cause=cause)
        assert recall(fault, job, TIMES).steps == steps
    assert recall(fault, window(40, {0: WARNING}), TIMES).wrong == 1


def test_stated_time_is_that_of_the_rank_at_fault_in_whole_evaluated_windows():
    evaluated = window(20, {1: WARNING}) + window(40, {0: WARNING, 1: 0}) + window(60, {0: 0, 1: INSUFFICIENT})
    assert recall(FAULT, evaluated, TIMES).stated == ((40, 0.01),)


def test_faults_that_ended_before_a_point_are_not_counted_there():
    short = recall(FaultPhase("late", 30, 69, (1,)), rows({40}), TIMES)
    long = recall(FAULT, rows(set()), TIMES)
    assert share_within([short, long], 40) == (1, 2)
    assert share_within([short, long], 100) == (0, 1)
    assert share_within([short, long], 1, seconds=True) == (0, 2)
