"""Healthy windows: names counted by window, exact bounds, windows that nobody evaluated and why."""

import pytest

from drumline.lab.evaluate.curve.healthy_windows import EvaluatedWindows, HealthyCount, upper_bound, windows_inside
from drumline.lab.evaluate.scoring import INSUFFICIENT, WARNING, WHOLE_JOB
from drumline.views.verdict.verdict_rows import VerdictRow


def row(first, rank, severity, detail="", cause="ok"):
    return VerdictRow(first, first + 19, rank, severity, cause, detail, 0.0)


@pytest.mark.parametrize(
    ("hits", "count", "bound"),
    [(0, 3000, 1 - 0.05 ** (1 / 3000)), (1, 10, 0.39416), (5, 10, 0.77756), (10, 10, 1.0), (0, 0, 1.0)],
)
def test_the_bound_is_clopper_pearsons(hits, count, bound):
    assert upper_bound(hits, count) == pytest.approx(bound, abs=1e-5)


def test_two_names_in_one_window_are_one_window_and_the_job_is_no_rank():
    count = HealthyCount()
    count.add(
        [
            [row(0, 0, WARNING, cause="host_stall"), row(0, 1, WARNING, cause="host_stall")],
            [row(20, WHOLE_JOB, WARNING, cause="slow_link"), row(20, 0, 0)],
            [row(40, WHOLE_JOB, 1), row(40, 0, 1)],
        ]
    )
    assert (count.windows, count.named, count.job) == (3, 1, 1)
    assert count.names == {"rank 0 host_stall": 1, "rank 1 host_stall": 1, "job slow_link": 1}
    assert count.per_1000 == pytest.approx(333.3, abs=0.1)


def test_a_window_without_a_verdict_counts_as_not_evaluated():
    coverage = EvaluatedWindows()
    rows = [row(0, 0, 0), row(0, 1, INSUFFICIENT)]
    rows += [row(20, WHOLE_JOB, 0), row(20, 0, INSUFFICIENT, "few_steps_compared"), row(20, 1, INSUFFICIENT)]
    rows += [row(40, 0, INSUFFICIENT)]
    coverage.add(rows, [0, 20, 40, 60])
    assert (coverage.share, coverage.windows) == (0.25, 4)
    assert coverage.reasons == {"few_steps_compared": 1, "no detail": 1, "no verdict": 1}


def test_windows_that_reach_out_of_a_healthy_phase_are_left_out():
    rows = [row(first, 0, 0) for first in (0, 20, 40)]
    assert [of[0].first_step for of in windows_inside(rows, [(5, 39), (40, 58)])] == [20]
