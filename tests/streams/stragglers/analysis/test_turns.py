"""A rank is named only beyond what healthy windows lose by turns; turns that cost the job are its own row."""

from __future__ import annotations

import numpy as np
import pytest

from drumline.infra.bench.jittery_jobs import HEALTHY, STEP_NS, fault, lateness, named, verdicts, windows
from drumline.streams.core.chance import beyond, spread, spread_of_sizes, times_spread
from drumline.streams.core.thresholds import SUSPECT


def test_limits_are_those_of_students_t():
    assert times_spread(0.001, 16) == pytest.approx(4.015, abs=0.001)
    assert times_spread(0.05, 5) == pytest.approx(2.571, abs=0.001)
    assert beyond(1.96, 10**6) == pytest.approx(0.05, abs=0.0001)


def test_a_few_odd_values_do_not_move_a_spread():
    sizes = np.abs(np.random.default_rng(0).standard_normal(4000)).tolist()
    assert spread_of_sizes(sizes)[0] == pytest.approx(1.0, abs=0.05)
    assert spread_of_sizes([*sizes[:3500], *[50.0] * 100])[0] == pytest.approx(1.0, abs=0.1)
    assert spread(np.array([0.0, 9.0] * 10)) == 0.0  # in every second step is no chance


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_ranks_are_not_named_and_what_turns_cost_is_the_jobs(kind):
    result = verdicts(windows(lateness(kind, 4, 400, 0.15, seed=1)))
    assert [named(verdict) for verdict in result] == [set()] * 20
    rows = [verdict.rows[0] for verdict in result if verdict.rows[0].cause.cause == "jitter"]
    assert {row.severity for row in rows} <= {SUSPECT}
    assert all(row.share >= 0.02 and row.cause.detail.startswith("rank") and row.evidence["turns"] for row in rows)
    if kind in ("independent steps", "turns of 3 steps"):
        assert len(rows) > 10


@pytest.mark.parametrize("what", ["idle", "compute", "every 4th step"])
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("first", [0, 100])
def test_a_late_rank_of_a_job_without_jitter_is_named_in_its_first_window(first, ranks, what):
    idle, more = np.zeros((200, ranks)), np.zeros((200, ranks))
    (more if what == "compute" else idle)[:, 1] = fault(what, 200, first, 0.05)
    result = [named(verdict) for verdict in verdicts(windows(idle, more))]
    assert result == [set()] * (first // 20) + [{1}] * (10 - first // 20)


def test_a_late_rank_among_turns_is_named_within_two_windows_and_no_other_rank():
    late = lateness("turns of 3 steps", 4, 400, 0.1, seed=2)
    late[200:, 1] += STEP_NS
    result = [named(verdict) for verdict in verdicts(windows(late))]
    assert result[:10] == [set()] * 10
    assert {1} in result[10:12]
    assert result[12:] == [{1}] * 8


def test_one_late_step_names_nobody():
    late = np.zeros((200, 4))
    late[170, 2] = 2 * STEP_NS
    result = verdicts(windows(late))
    assert [named(verdict) for verdict in result] == [set()] * 10
    [row] = [row for row in result[8].rows if row.rank == 2]
    assert (row.evidence["judged"], row.share > 0.05) == ("one_step", True)
