"""A rank is named only where it is late beyond the turns that ranks take; turns that cost the job are its own row."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.jitter_simulator import KINDS, STEP_NS, lateness, named, verdicts

from drumline.streams.core.chance import at_least, late_at_least
from drumline.streams.core.thresholds import SUSPECT

#: Turns that are shorter than a window of 20 steps.
SHORT = ("independent", "heavy tails", "a pause in 20 steps")


def test_chance_is_the_binomial_one_where_steps_are_independent_and_the_rate_is_known():
    exact = sum(math.comb(20, k) * 0.3**k * 0.7 ** (20 - k) for k in range(9, 21))
    assert late_at_least(9, 20, 0.3, 0.3) == pytest.approx(exact)
    assert at_least(9, 20, 3e7, 7e7) == pytest.approx(exact, rel=1e-4)
    assert late_at_least(9, 20, 0.1, 0.8) > exact
    assert late_at_least(0, 20, 0.1, 0.8) == at_least(0, 20, 1.0, 1.0) == 1.0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kind", SHORT)
def test_ranks_that_are_late_by_turns_are_not_named_and_the_job_has_jitter(kind, ranks):
    result = verdicts(lateness(kind, ranks, 160, 0.15, seed=1), 20)
    assert [named(verdict) for verdict in result] == [set()] * 8
    rows = [verdict.rows[0] for verdict in result if verdict.rows[0].cause.cause == "jitter"]
    assert rows
    assert {row.severity for row in rows} == {SUSPECT}
    assert all(row.share >= 0.02 and row.cause.detail.startswith("rank") and row.evidence["turns"] for row in rows)


@pytest.mark.parametrize("window_steps", [5, 20])
@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("first", [0, 4])
def test_a_constant_culprit_of_a_job_without_jitter_is_named_in_its_first_window(first, ranks, window_steps):
    late = np.zeros((6 * window_steps, ranks))
    late[first * window_steps :, 1] = 0.05 * STEP_NS
    result = [named(verdict) for verdict in verdicts(late, window_steps)]
    assert result == [set()] * first + [{1}] * (6 - first)


@pytest.mark.parametrize("period", [3, 4, 5])
def test_one_rank_in_every_few_steps_takes_nobodys_turn(period):
    late = np.zeros((100, 4))
    late[::period, 1] = 0.5 * STEP_NS
    assert [named(verdict) for verdict in verdicts(late, 20)] == [{1}] * 5


def test_a_culprit_among_turns_is_named_within_two_windows_and_no_other_rank():
    late = lateness("turns of 3 steps", 4, 400, 0.1, seed=2)
    late[200:, 1] += STEP_NS
    result = [named(verdict) for verdict in verdicts(late, 20)]
    assert result[:10] == [set()] * 10
    assert {1} in result[10:12]
    assert result[12:] == [{1}] * 8


def test_one_late_step_is_not_consistent():
    late = np.zeros((100, 4))
    late[70, 2] = 2 * STEP_NS
    assert [named(verdict) for verdict in verdicts(late, 20)] == [set()] * 5


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_false_names_and_the_delay_of_names():
    """The figures of docs/results/gpu-sessions.md, Verdicts on recordings."""
    kinds = [kind for kind in KINDS if kind not in ("turns of 20 steps", "turns of 100 steps", "drift of 20 steps")]
    windows = names = 0
    delays = []
    for ranks in (2, 4, 8):
        for at, kind in enumerate(kinds):
            result = verdicts(lateness(kind, ranks, 20 * 100, 0.05 + 0.05 * at, seed=at), 20)
            windows, names = windows + len(result), names + sum(bool(named(verdict)) for verdict in result)
            late = lateness(kind, ranks, 20 * 40, 0.05, seed=at)
            late[407:, 1] += 0.5 * STEP_NS
            hits = [at for at, verdict in enumerate(verdicts(late, 20)) if at >= 20 and 1 in named(verdict)]
            delays.append(hits[0] - 20 + 1 if hits else 20)
    print(f"{names} of {windows} healthy windows name a rank; delay {sorted(delays)} windows")
    assert names <= 3 * windows / 1000
    assert np.percentile(delays, 95) <= 2
